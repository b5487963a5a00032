"""Explains a simulated step's time: the waits along its critical path, and how busy its links were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from autosync.plan.types import Edge, Operation, Plan, Transfer
from autosync.simulators.timeline.scene import Played, Scene
from autosync.simulators.timeline.training_program import COMPUTE, EVENT, WAIT
from autosync.specs.cluster import ClusterSpec
from autosync.specs.link_calibration import measured_node
from autosync.specs.links import inside_name, interface_name, uplink_name

_ROUNDING_SECONDS = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Critical:
    """One stretch of a step's critical path, on one rank.

    `operation` is a position in the plan, or None for compute and for waits for input. The stretch before it delayed
    its start. The reason may be a gradient, another operation that it needs, its lane, or a member that came later.
    """

    kind: Literal["compute", "transfer", "local", "input"]
    name: str
    rank: int
    operation: int | None
    start_seconds: float
    end_seconds: float

    @property
    def seconds(self) -> float:
        return self.end_seconds - self.start_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyLink:
    """The share of a step in which a link carries bytes.

    A link is one direction of an interface or an uplink, or the sends of a rank within its node if that rate is known.
    """

    link: str
    busy_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A step's time, and the parts of it that are compute and waiting for communication.

    If parameters are averaged only in some steps, `seconds` is the mean over steps, and `average_seconds` is the time
    of a step with an average (else None). `critical_path` goes from that step's start to its end, across ranks. `links`
    begins with the busiest link.
    """

    seconds: float
    average_seconds: float | None
    compute_seconds: float
    exposed_seconds: float
    critical_path: tuple[Critical, ...]
    links: tuple[BusyLink, ...]


def name_of(plan: Plan, index: int) -> str:
    """Return the name of an operation, as in the engine's timelines."""
    operation = plan.operations[index]
    what = operation.collective if isinstance(operation, Transfer) else operation.kind
    parts = plan.messages[operation.message]
    more = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
    return f"{what} of {parts[0]}{more} (operation {index})"


def explanation_of(plan: Plan, cluster: ClusterSpec, scene: Scene, played: Played, *, seconds: float) -> Explanation:
    """Return the explanation of the last simulated step, in which all that the plan does only in some steps is done."""
    path = _Path(plan, scene, played)
    # The slowest rank's: the others wait for it.
    compute = float(scene.program_seconds[scene.trains][:, scene.program == COMPUTE].sum(axis=1).max())
    averages = any(one.every > 1 for one in plan.operations)
    return Explanation(
        seconds=seconds,
        average_seconds=float(played.step_ends[-1] - played.step_ends[-2]) if averages else None,
        compute_seconds=compute,
        exposed_seconds=max(0.0, seconds - compute),
        critical_path=path.back_from_the_end(),
        links=_busy_links(cluster, scene, seconds),
    )


class _Path:
    """Walks back from the end of the last step."""

    def __init__(self, plan: Plan, scene: Scene, played: Played) -> None:
        self._plan = plan
        self._scene = scene
        self._played = played
        self._iteration = len(played.step_ends) - 1
        self._begin = float(played.step_ends[-2]) if len(played.step_ends) > 1 else 0.0
        self._lane_before = self._lanes()

    def back_from_the_end(self) -> tuple[Critical, ...]:
        ends = self._played.passed[self._iteration, :, -1]
        rank = int(np.nanargmax(ends))
        found: list[Critical] = []
        now, place = float(ends[rank]), len(self._scene.program) - 1
        while now > self._begin + _ROUNDING_SECONDS:
            if self._waited_for_input(rank, place):
                found.append(self._training("input", rank, self._begin, now))
                break
            waited = self._waited(rank, place)
            if waited is None:
                start = max(self._begin, self._compute_from(rank, place, now))
                found.append(self._training("compute", rank, start, now))
                if start <= self._begin + _ROUNDING_SECONDS:
                    break
                place, now = self._place_at(rank, start), start
                if self._waited(rank, place) is None and not self._waited_for_input(rank, place):
                    break
                continue
            now, rank, place = self._through(waited, rank, found)
        return tuple(reversed(found))

    def _through(self, waited: tuple[int, int], rank: int, found: list[Critical]) -> tuple[float, int, int]:
        """Walk back through operations to the compute that they waited for; return its time, rank and position."""
        index, iteration = waited
        # A late member may end after another one on which the next operation has already begun.
        until = np.inf
        while True:
            part = int(self._scene.part_of[index, rank])
            rank, part = self._last_to_come(index, rank, part, iteration)
            begun, ended = float(self._played.begun[iteration, part]), float(self._played.ended[iteration, part])
            operation = self._plan.operations[index]
            found.append(
                Critical(
                    kind="transfer" if isinstance(operation, Transfer) else "local",
                    name=name_of(self._plan, index),
                    rank=rank,
                    operation=index,
                    start_seconds=begun,
                    end_seconds=min(ended, until),
                )
            )
            until = begun
            before = self._before(index, rank, part, iteration)
            if before is None or begun <= self._begin:
                return begun, rank, self._place_that_told(operation.after, rank, begun)
            index, iteration = before

    def _last_to_come(self, index: int, rank: int, part: int, iteration: int) -> tuple[int, int]:
        """Return the member of the rank's group that began last, and its part."""
        operation = self._plan.operations[index]
        group = next(group for group in operation.groups if rank in group)
        if not isinstance(operation, Transfer) or len(group) == 1:
            return rank, part
        parts = [int(self._scene.part_of[index, member]) for member in group]
        latest = int(np.nanargmax([self._played.begun[iteration, one] for one in parts]))
        if self._played.begun[iteration, parts[latest]] <= self._played.begun[iteration, part] + _ROUNDING_SECONDS:
            return rank, part
        return group[latest], parts[latest]

    def _before(self, index: int, rank: int, part: int, iteration: int) -> tuple[int, int] | None:
        """Return the operation, with its iteration, whose end let another one begin; None if training let it begin."""
        operation: Operation = self._plan.operations[index]
        candidates = [(edge.target, iteration - edge.lag) for edge in operation.after if edge.event == "operation"]
        candidates += [(before, iteration) for before in self._lane_before.get(part, ())]
        best, latest, begun = None, -np.inf, self._played.begun[iteration, part] + _ROUNDING_SECONDS
        for target, at in candidates:
            other = int(self._scene.part_of[target, rank])
            # An operation that overlapped it did not delay it. An operation that was not done in that iteration has no
            # end.
            if at >= 0 and other >= 0 and latest < self._played.ended[at, other] <= begun:
                best, latest = (target, at), float(self._played.ended[at, other])
        told = self._told(operation.after, rank, iteration)
        return best if latest >= told - _ROUNDING_SECONDS and best is not None else None

    def _told(self, edges: tuple[Edge, ...], rank: int, iteration: int) -> float:
        """Return when training passed the last of the events that these edges wait for."""
        return max(self._played.passed[iteration, rank, self._places_that_tell(edges, rank)].tolist(), default=-np.inf)

    def _place_that_told(self, edges: tuple[Edge, ...], rank: int, begun: float) -> int:
        """Return the program position at which training let an operation begin.

        It is not simply the last position passed by then: an operation that takes no time lets training pass its gate
        at the same moment, and the walk would return to that operation.
        """
        return max(self._places_that_tell(edges, rank), default=self._place_at(rank, begun))

    def _places_that_tell(self, edges: tuple[Edge, ...], rank: int) -> list[int]:
        scene = self._scene
        if not scene.trains[rank]:
            return []
        numbers = [
            edge.target if edge.event == "grad_ready" else scene.num_events - 2
            for edge in edges
            if edge.event != "operation"
        ]
        return np.flatnonzero((scene.program == EVENT) & np.isin(scene.program_argument, numbers)).tolist()

    def _lanes(self) -> dict[int, tuple[int, ...]]:
        """Return for each part the operations before it in its lane, as many as the lane executes at a time."""
        scene, found = self._scene, dict[int, tuple[int, ...]]()
        for queue in range(len(scene.first_queued) - 1):
            queued = scene.queued[scene.first_queued[queue] : scene.first_queued[queue + 1]].tolist()
            operations = scene.parts["operation"][queued].tolist()
            for place, part in enumerate(queued):
                found[part] = tuple(operations[max(0, place - scene.lane_width) : place])
        return found

    def _waited(self, rank: int, place: int) -> tuple[int, int] | None:
        """Return the operation, with its iteration, for which training last waited up to a program position.

        None if the last program step that took time was compute.
        """
        scene, gate = self._scene, self._last_gate(rank, place)
        if gate is None or gate == len(self._plan.gates):
            return None
        ends = {}
        for edge in self._plan.gates[gate].after:
            part = int(scene.part_of[edge.target, rank]) if edge.event == "operation" else -1
            iteration = self._iteration - edge.lag
            if part >= 0 and iteration >= 0 and np.isfinite(self._played.ended[iteration, part]):
                ends[edge.target, iteration] = float(self._played.ended[iteration, part])
        return max(ends, key=lambda which: ends[which]) if ends else None

    def _waited_for_input(self, rank: int, place: int) -> bool:
        """Return whether training last waited for its batch, at the gate behind those of the plan."""
        return self._last_gate(rank, place) == len(self._plan.gates)

    def _last_gate(self, rank: int, place: int) -> int | None:
        """Return the gate at which training last waited up to a program position; None if it computed since."""
        while place >= 0 and not self._took_time(rank, place):
            place -= 1
        if place < 0 or self._scene.program[place] != WAIT:
            return None
        return int(self._scene.program_argument[place])

    def _took_time(self, rank: int, place: int) -> bool:
        passed = self._played.passed[self._iteration, rank]
        if place > 0:
            before = float(passed[place - 1])
        else:
            before = float(self._played.passed[self._iteration - 1, rank, -1]) if self._iteration else 0.0
        return bool(passed[place] > before + _ROUNDING_SECONDS)

    def _compute_from(self, rank: int, place: int, now: float) -> float:
        """Return the time since which training has computed without waiting."""
        passed = self._played.passed[self._iteration, rank]
        for at in range(place, -1, -1):
            if self._scene.program[at] == WAIT and passed[at] < now - _ROUNDING_SECONDS and self._took_time(rank, at):
                return float(passed[at])
        return self._begin

    def _place_at(self, rank: int, now: float) -> int:
        """Return the last program position that was passed by then."""
        passed = self._played.passed[self._iteration, rank]
        return max(0, int(np.searchsorted(passed, now + _ROUNDING_SECONDS, side="right")) - 1)

    def _training(self, kind: Literal["compute", "input"], rank: int, start: float, end: float) -> Critical:
        name = "training" if kind == "compute" else "waiting for input"
        return Critical(kind=kind, name=name, rank=rank, operation=None, start_seconds=start, end_seconds=end)


def _busy_links(cluster: ClusterSpec, scene: Scene, seconds: float) -> tuple[BusyLink, ...]:
    """Return the busy shares of the links: the bytes of a step on each link over its rate and the step's time."""
    # A step that takes no time, of a model without times that trains alone, sends nothing.
    seconds = seconds or np.inf
    network, num_nodes = scene.network, len(cluster.nodes)
    out = np.zeros(len(network.link_rate))
    into = np.zeros(len(network.queue_rate))
    every = scene.every[scene.parts["operation"][scene.channels["source"]]]
    first = scene.channels["first_message"]
    totals = np.add.reduceat(np.append(scene.message_bytes, 0.0), first) if len(first) else np.zeros(0)
    lines = scene.lines[scene.channels["line"]]
    totals = np.where(scene.channels["num_messages"] > 0, totals, 0.0) / every
    np.add.at(out, lines["link"], totals)
    for field in ("queue", "rack_out", "rack_in", "inner_out", "inner_in"):
        on = lines[field] >= 0
        np.add.at(into, lines[field][on], totals[on])
    # With reads, each node has a storage behind all nodes.
    num_storages = len(network.rack) - num_nodes
    leave = [(number, interface_name(node.name, "out")) for number, node in enumerate(cluster.nodes)]
    leave += [(num_nodes + number, f"storage of {cluster.nodes[number].name}") for number in range(num_storages)]
    leave += [
        (num_nodes + num_storages + rank.index, inside_name(cluster.nodes[rank.node].name, rank.index))
        for rank in cluster.ranks
        if cluster.nodes[rank.node].devices > 1 and _knows_inside(cluster, rank.node)
    ]
    enter = [interface_name(node.name, "in") for node in cluster.nodes]
    enter += [""] * num_storages
    enter += [uplink_name(rack.name, "out") for rack in cluster.racks]
    enter += [uplink_name(rack.name, "in") for rack in cluster.racks]
    enter += [inside_name(node.name) for node in cluster.nodes if node.intra_total is not None]
    assert len(into) == len(enter), "queues are into nodes, out of and into racks, and inside nodes"
    found = [
        BusyLink(link=name, busy_share=float(out[number] / network.link_rate[number] / seconds))
        for number, name in leave
    ]
    found += [
        BusyLink(link=name, busy_share=float(into[number] / network.queue_rate[number] / seconds))
        for number, name in enumerate(enter)
        if name
    ]
    return tuple(sorted(found, key=lambda link: -link.busy_share))


def _knows_inside(cluster: ClusterSpec, node: int) -> bool:
    """Return whether the rate within the node is given or was probed. A loopback interface does not count as a link."""
    probed = measured_node(cluster, cluster.nodes[node].name)
    return cluster.nodes[node].intra_bandwidth is not None or (probed is not None and probed.rate_within is not None)
