"""A model's step without waits, as the analytical kernel reads it."""

from __future__ import annotations

import numpy as np

from autosync.simulators.analytical.tables import SEGMENT, VARIABLE, ComputePace, ModelStep
from autosync.specs.cluster import ClusterSpec
from autosync.specs.costs import Costs
from autosync.specs.model import ModelSpec


def training_of(model: ModelSpec, cluster: ClusterSpec, costs: Costs) -> ModelStep:
    """Return the model's step: its compute, and the engine's own work in a step."""
    # Ranks that share processors wait for one another. If each node has its own, the model's timeline includes
    # everything.
    crowd = 0.0 if costs.num_processors is None else max(1.0, cluster.num_workers / costs.num_processors)
    timeline = model.timeline
    microstep = sum(segment.seconds for segment in (*timeline.forward, *timeline.backward))
    uses = sorted({variable.use for variable in model.variables})
    place = {use: index for index, use in enumerate(uses)}
    num_elements = sum(variable.num_elements for variable in model.variables)
    has_norm = model.clip_norm is not None or model.loss_scaling
    pace = ComputePace(
        backward=float(sum(segment.seconds for segment in timeline.backward)),
        between=float((model.accumulation_steps - 1) * microstep) + crowd * costs.processor.step,
        update=update_seconds(model),
        norm=costs.local_seconds + num_elements / costs.local_rate("norm") if has_norm else 0.0,
    )
    variables = [(ready, place[variable.use]) for ready, variable in zip(_ready(model), model.variables, strict=True)]
    return ModelStep(
        pace=pace, variables=np.array(variables, dtype=VARIABLE), forward=np.array(_forward(model), dtype=SEGMENT)
    )


def update_seconds(model: ModelSpec) -> float:
    """Return the optimizer's time for an element."""
    num_elements = sum(variable.num_elements for variable in model.variables)
    return float(sum(segment.seconds for segment in model.timeline.optimizer)) / num_elements


def _forward(model: ModelSpec) -> list[tuple[int, float]]:
    """Return the forward pass: each segment waits for its variables.

    Variables outside the timeline are used at the end.
    """
    position = {variable.name: index for index, variable in enumerate(model.variables)}
    found: list[tuple[int, float]] = []
    for segment in model.timeline.forward:
        found += [*[(position[name], 0.0) for name in segment.variables], (-1, segment.seconds)]
    used = {name for segment in model.timeline.forward for name in segment.variables}
    return [*found, *[(index, 0.0) for name, index in position.items() if name not in used]]


def _ready(model: ModelSpec) -> list[float]:
    """Return when gradients are ready: at the end of their segment, or of the pass if the timeline lacks them."""
    found: dict[str, float] = {}
    now = 0.0
    for segment in model.timeline.backward:
        now += segment.seconds
        found.update(dict.fromkeys(segment.variables, now))
    return [found.get(variable.name, now) for variable in model.variables]
