"""What waits for each operation and for each event of a plan. Gates are numbered after all operations. Compiled."""

from __future__ import annotations

from autosync.plan.tables import EVENTS
from autosync.simulators.jit import borrows_inner
from autosync.simulators.shared.arrays import Integers
from autosync.simulators.timeline.scene import Scene
from autosync.simulators.timeline.scene_inputs import SceneInputs, ScenePlaces, SceneRows

_OPERATION, _GRAD_READY = EVENTS.index("operation"), EVENTS.index("grad_ready")


@borrows_inner
def count_edges(inputs: SceneInputs, rows: SceneRows) -> None:
    operations, gates = inputs.operations, inputs.gates
    num_operations = len(operations.shape)
    for what in range(num_operations + len(gates.kind)):
        edges = operations.after if what < num_operations else gates.after
        row = what if what < num_operations else what - num_operations
        for position in range(edges.first[row], edges.first[row + 1]):
            event = _event(inputs, what, position)
            if event < 0:
                rows.follower[edges.target[position] + 1] += 1
            else:
                rows.on_event[event + 1] += 1
        if what < num_operations and inputs.by_users[what]:
            rows.on_event[inputs.program.user_updated + 1] += 1


@borrows_inner
def enter_edges(inputs: SceneInputs, places: ScenePlaces, scene: Scene) -> None:
    """Enter which operations and gates wait for each operation and for each event, and count the events of each."""
    operations, gates = inputs.operations, inputs.gates
    num_operations = len(operations.shape)
    for what in range(num_operations + len(gates.kind)):
        edges = operations.after if what < num_operations else gates.after
        row = what if what < num_operations else what - num_operations
        for position in range(edges.first[row], edges.first[row + 1]):
            event = _event(inputs, what, position)
            if event < 0:
                target = edges.target[position]
                place = places.follower[target]
                scene.follower[place], scene.follower_lag[place] = what, edges.lag[position]
                places.follower[target] += 1
            else:
                _enter_event(inputs, places, scene, what, event)
        if what < num_operations and inputs.by_users[what]:
            _enter_event(inputs, places, scene, what, inputs.program.user_updated)


@borrows_inner
def _enter_event(inputs: SceneInputs, places: ScenePlaces, scene: Scene, what: int, event: int) -> None:
    scene.on_event[places.on_event[event]] = what
    places.on_event[event] += 1
    # Servers have no gradients, but they have steps.
    places.counts[what, 0] += 1
    places.counts[what, 1] += event >= inputs.program.step_called


@borrows_inner
def _event(inputs: SceneInputs, what: int, position: int) -> int:
    """Return the event of an edge; -1 if the edge is from an operation."""
    operations, gates = inputs.operations, inputs.gates
    edges = operations.after if what < len(operations.shape) else gates.after
    event = edges.event[position]
    if event == _OPERATION:
        return -1
    return int(edges.target[position] if event == _GRAD_READY else inputs.program.step_called)


@borrows_inner
def enter_waits(inputs: SceneInputs, counts: Integers, scene: Scene) -> None:
    """Enter for how many events each item waits."""
    parts, waits = scene.parts, scene.num_waits
    num_operations, num_ranks = len(inputs.operations.shape), len(inputs.trains)
    for part in range(len(parts)):
        waits[part] = counts[parts[part].operation, 0 if inputs.trains[parts[part].rank] else 1]
    for gate in range(scene.num_gates):
        for one in range(num_ranks):
            waits[len(parts) + gate * num_ranks + one] = counts[num_operations + gate, 0]
