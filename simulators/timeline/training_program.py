"""The program of a rank that trains, for one iteration: the model's timeline with the plan's gates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autosync.plan.tables import GATE_KINDS, Gates
from autosync.plan.types import Gate
from autosync.simulators.shared.arrays import Floats, Integers
from autosync.specs.compute_pace import Pace
from autosync.specs.model import ModelSpec

COMPUTE, WAIT, EVENT, STEP_ENDS, WORK = range(5)
"""The kinds of steps in a program: compute, wait at a gate, signal an event, end the iteration, or use a processor for
the engine's work."""


class Program(NamedTuple):
    """One iteration of training: the steps with their gates or events, and their times.

    The events are the variables' gradients, by position, then `step_called` and `user_updated`.
    """

    num_events: int
    step_called: int
    user_updated: int
    step: Integers
    argument: Integers
    seconds: Floats


def program_of(tables: Gates, model: ModelSpec) -> Program:
    """Return the program of plans with these gates. The user's optimizer takes no time in it: see `with_update`."""
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
    """Return the program with this time of the user's optimizer for its own updates."""
    taken = program.seconds.copy()
    # Its compute is between the last two events.
    (called,) = np.flatnonzero((program.step == EVENT) & (program.argument == program.step_called))
    taken[called + 1] = seconds
    return program._replace(seconds=taken)


def seconds_at(program: Program, paces: Sequence[Pace]) -> Floats:
    """Return the times of a program's steps on ranks of these paces: a row for each rank.

    The engine's work does not depend on the pace.
    """
    is_compute = program.step == COMPUTE
    passes, update = is_compute.copy(), np.zeros_like(is_compute)
    (called,) = np.flatnonzero((program.step == EVENT) & (program.argument == program.step_called))
    passes[called + 1 :], update[called + 1] = False, True
    factors = [np.where(passes, pace.passes, np.where(update, pace.update, 1.0)) for pace in paces]
    return np.array(factors, dtype=np.float64) * program.seconds


def with_work(program: Program, *, step: float, gradient: float, update: float) -> Program:
    """Return the program with the engine's work on a processor: at the start, for each gradient, for all updates."""
    steps: list[tuple[int, int, float]] = [(WORK, 0, step)]
    rows = list(zip(program.step.tolist(), program.argument.tolist(), program.seconds.tolist(), strict=True))
    for place, (kind, argument, seconds) in enumerate(rows):
        is_gradient = kind == EVENT and argument < program.step_called
        if is_gradient and (place == 0 or rows[place - 1][0] != EVENT):
            # The gradients of one segment become ready together.
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
    """Return the forward pass, in which each segment waits for its variables.

    The earlier microsteps follow as one compute step, because they use the same variables.
    """
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
    """Return the backward pass. Each segment's gradients are ready at its end."""
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
