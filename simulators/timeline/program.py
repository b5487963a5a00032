"""What a rank that trains does in an iteration: the model's timeline, with the plan's gates in their places."""

from __future__ import annotations

import numpy as np

from autosync.plan.types import Plan
from autosync.simulators.timeline.problem import COMPUTE, EVENT, STEP_ENDS, WAIT, Program
from autosync.specs.model import ModelSpec


def program_of(plan: Plan, model: ModelSpec, *, users_seconds: float) -> Program:
    """`users_seconds` is what the user's optimizer takes for the variables that it updates itself."""
    step_called = len(model.variables)
    steps = _forward(plan, model) + _backward(plan, model)
    gates = {gate.kind: index for index, gate in enumerate(plan.gates)}
    steps += [(EVENT, step_called, 0.0), (COMPUTE, 0, users_seconds), (EVENT, step_called + 1, 0.0)]
    if "step_returns" in gates:
        steps.append((WAIT, gates["step_returns"], 0.0))
    steps.append((STEP_ENDS, 0, 0.0))
    kept = [one for one in steps if one[0] != COMPUTE or one[2] > 0.0]
    return Program(
        num_events=step_called + 2,
        step_called=step_called,
        user_updated=step_called + 1,
        step=np.array([step for step, _, _ in kept], dtype=np.int64),
        argument=np.array([argument for _, argument, _ in kept], dtype=np.int64),
        seconds=np.array([seconds for _, _, seconds in kept], dtype=np.float64),
    )


def _forward(plan: Plan, model: ModelSpec) -> list[tuple[int, int, float]]:
    """Each segment waits for what it uses; earlier microsteps go by with it, for they use the same."""
    gates = {gate.variable: index for index, gate in enumerate(plan.gates) if gate.kind == "before_use"}
    position = {variable.name: index for index, variable in enumerate(model.variables)}
    timeline = model.timeline
    steps: list[tuple[int, int, float]] = []
    for segment in timeline.forward:
        waited = [gates[position[name]] for name in segment.variables if position[name] in gates]
        steps += [(WAIT, gate, 0.0) for gate in waited]
        steps.append((COMPUTE, 0, segment.seconds))
    used = {name for segment in timeline.forward for name in segment.variables}
    steps += [(WAIT, gates[index], 0.0) for name, index in position.items() if name not in used and index in gates]
    microstep = sum(segment.seconds for segment in (*timeline.forward, *timeline.backward))
    return [*steps, (COMPUTE, 0, (model.accumulation_steps - 1) * microstep)]


def _backward(plan: Plan, model: ModelSpec) -> list[tuple[int, int, float]]:
    """Each segment's gradients are there at its end."""
    gates = {gate.kind: index for index, gate in enumerate(plan.gates)}
    position = {variable.name: index for index, variable in enumerate(model.variables)}
    steps: list[tuple[int, int, float]] = []
    for segment in model.timeline.backward:
        steps.append((COMPUTE, 0, segment.seconds))
        steps += [(EVENT, position[name], 0.0) for name in segment.variables]
    told = {name for segment in model.timeline.backward for name in segment.variables}
    steps += [(EVENT, index, 0.0) for name, index in position.items() if name not in told]
    if "backward_returns" in gates:
        steps.append((WAIT, gates["backward_returns"], 0.0))
    return steps
