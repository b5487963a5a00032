"""What a rank that trains does in an iteration: the model's timeline, with the plan's gates in their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autosync.plan.tables import GATE_KINDS, Gates
from autosync.plan.types import Gate
from autosync.simulators.shared.arrays import Floats, Integers
from autosync.specs.model import ModelSpec

COMPUTE, WAIT, EVENT, STEP_ENDS, WORK = range(5)
"""What training does next: takes its time, waits at a gate, makes something happen, ends an iteration, or works for the
engine on a processor."""


class Program(NamedTuple):
    """An iteration of training: what is done next, about which gate or event, for how long.

    Events are the gradients of variables, by position, then these two.
    """

    num_events: int
    step_called: int
    user_updated: int
    step: Integers
    argument: Integers
    seconds: Floats


def program_of(tables: Gates, model: ModelSpec) -> Program:
    """The program of plans with these gates. The user's optimizer takes no time in it: see `with_update`."""
    gates = [
        Gate(kind=GATE_KINDS[kind], variable=variable, after=())
        for kind, variable in zip(tables.kind.tolist(), tables.variable.tolist(), strict=True)
    ]
    step_called = len(model.variables)
    position = {gate.kind: index for index, gate in enumerate(gates)}
    steps = _forward(gates, model) + _backward(gates, model)
    steps += [(EVENT, step_called, 0.0), (COMPUTE, 0, 0.0), (EVENT, step_called + 1, 0.0)]
    if "step_returns" in position:
        steps.append((WAIT, position["step_returns"], 0.0))
    steps.append((STEP_ENDS, 0, 0.0))
    return Program(
        num_events=step_called + 2,
        step_called=step_called,
        user_updated=step_called + 1,
        step=np.array([step for step, _, _ in steps], dtype=np.int64),
        argument=np.array([argument for _, argument, _ in steps], dtype=np.int64),
        seconds=np.array([seconds for _, _, seconds in steps], dtype=np.float64),
    )


def with_update(program: Program, seconds: float) -> Program:
    """The same where the user's optimizer takes so long for what it updates itself."""
    taken = program.seconds.copy()
    # Its compute lies between the two last events.
    (called,) = np.flatnonzero((program.step == EVENT) & (program.argument == program.step_called))
    taken[called + 1] = seconds
    return program._replace(seconds=taken)


def with_work(program: Program, *, step: float, gradient: float, update: float) -> Program:
    """The same with what training works on a processor: at the beginning, for each gradient, and for all updates."""
    steps: list[tuple[int, int, float]] = [(WORK, 0, step)]
    rows = list(zip(program.step.tolist(), program.argument.tolist(), program.seconds.tolist(), strict=True))
    for place, (kind, argument, seconds) in enumerate(rows):
        is_gradient = kind == EVENT and argument < program.step_called
        if is_gradient and (place == 0 or rows[place - 1][0] != EVENT):
            # Those of one segment come together.
            count = next(
                at for at in range(place, len(rows)) if rows[at][0] != EVENT or rows[at][1] >= program.step_called
            )
            steps.append((WORK, 0, gradient * (count - place)))
        elif kind == EVENT and argument == program.step_called:
            steps.append((WORK, 0, update))
        steps.append((kind, argument, seconds))
    return program._replace(
        step=np.array([kind for kind, _, _ in steps], dtype=np.int64),
        argument=np.array([argument for _, argument, _ in steps], dtype=np.int64),
        seconds=np.array([seconds for _, _, seconds in steps], dtype=np.float64),
    )


def _forward(gates: Sequence[Gate], model: ModelSpec) -> list[tuple[int, int, float]]:
    """Each segment waits for what it uses; earlier microsteps go by with it, for they use the same."""
    gate_of = {gate.variable: index for index, gate in enumerate(gates) if gate.kind == "before_use"}
    position = {variable.name: index for index, variable in enumerate(model.variables)}
    timeline = model.timeline
    steps: list[tuple[int, int, float]] = []
    for segment in timeline.forward:
        waited = [gate_of[position[name]] for name in segment.variables if position[name] in gate_of]
        steps += [(WAIT, gate, 0.0) for gate in waited]
        steps.append((COMPUTE, 0, segment.seconds))
    used = {name for segment in timeline.forward for name in segment.variables}
    steps += [(WAIT, gate_of[index], 0.0) for name, index in position.items() if name not in used and index in gate_of]
    microstep = sum(segment.seconds for segment in (*timeline.forward, *timeline.backward))
    return [*steps, (COMPUTE, 0, (model.accumulation_steps - 1) * microstep)]


def _backward(gates: Sequence[Gate], model: ModelSpec) -> list[tuple[int, int, float]]:
    """Each segment's gradients are there at its end."""
    gate_of = {gate.kind: index for index, gate in enumerate(gates)}
    position = {variable.name: index for index, variable in enumerate(model.variables)}
    steps: list[tuple[int, int, float]] = []
    for segment in model.timeline.backward:
        steps.append((COMPUTE, 0, segment.seconds))
        steps += [(EVENT, position[name], 0.0) for name in segment.variables]
    told = {name for segment in model.timeline.backward for name in segment.variables}
    steps += [(EVENT, index, 0.0) for name, index in position.items() if name not in told]
    if "backward_returns" in gate_of:
        steps.append((WAIT, gate_of["backward_returns"], 0.0))
    return steps
