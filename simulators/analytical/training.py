"""A model's step where nothing waits, as the analytical kernel reads it."""

from __future__ import annotations

import numpy as np

from autosync.simulators.analytical.tables import Floats, Training
from autosync.simulators.costs import Costs
from autosync.specs.model import ModelSpec


def training_of(model: ModelSpec, costs: Costs) -> Training:
    """What a step of the model is made of."""
    timeline = model.timeline
    position = {variable.name: index for index, variable in enumerate(model.variables)}
    waits, seconds = [], []
    for segment in timeline.forward:
        waits += [*[position[name] for name in segment.variables], -1]
        seconds += [*[0.0 for _ in segment.variables], segment.seconds]
    used = {name for segment in timeline.forward for name in segment.variables}
    late = [index for name, index in position.items() if name not in used]
    microstep = sum(segment.seconds for segment in (*timeline.forward, *timeline.backward))
    uses = sorted({variable.use for variable in model.variables})
    place = {use: index for index, use in enumerate(uses)}
    num_elements = sum(variable.num_elements for variable in model.variables)
    has_norm = model.clip_norm is not None or model.loss_scaling
    return Training(
        ready=_ready(model),
        use=np.array([place[variable.use] for variable in model.variables], dtype=np.int64),
        waits_for=np.array([*waits, *late], dtype=np.int64),
        seconds=np.array([*seconds, *[0.0 for _ in late]], dtype=np.float64),
        backward=sum(segment.seconds for segment in timeline.backward),
        between=(model.accumulation_steps - 1) * microstep,
        update=update_seconds(model),
        norm=costs.local_seconds + num_elements / costs.local_rate("norm") if has_norm else 0.0,
    )


def update_seconds(model: ModelSpec) -> float:
    """What the optimizer takes for an element."""
    num_elements = sum(variable.num_elements for variable in model.variables)
    return sum(segment.seconds for segment in model.timeline.optimizer) / num_elements


def _ready(model: ModelSpec) -> Floats:
    """A segment's gradients are there at its end; those that the timeline does not know, at the end of all."""
    found: dict[str, float] = {}
    now = 0.0
    for segment in model.timeline.backward:
        now += segment.seconds
        found.update(dict.fromkeys(segment.variables, now))
    return np.array([found.get(variable.name, now) for variable in model.variables], dtype=np.float64)
