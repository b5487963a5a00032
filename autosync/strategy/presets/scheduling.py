"""What presets that schedule transfers share: when gradients come, when parameters are used, and which lane is whose.

A lane keeps its order, and one lane keeps one server busy at a time. So whatever must overtake has a lane of its own:
variables are dealt to *bands* of use of about equal bytes, and each server has a lane for each band.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.backends import BACKENDS

MAX_BANDS = 4
"""Bands of one server: with more there are more threads than messages that overtake."""


def ready_seconds(model: ModelSpec) -> Mapping[str, float]:
    """When each gradient is complete, from the start of the last backward pass of a step.

    Without a timeline all gradients are complete at once.
    """
    backward = model.timeline.backward
    ends = itertools.accumulate(segment.seconds for segment in backward)
    known = {name: end for segment, end in zip(backward, ends, strict=True) for name in segment.variables}
    return {variable.name: known.get(variable.name, 0.0) for variable in model.variables}


def use_levels(model: ModelSpec) -> Mapping[str, int]:
    """The turn of each variable in the next forward pass, from 0; variables of one module have the same."""
    levels = {use: level for level, use in enumerate(sorted({variable.use for variable in model.variables}))}
    return {variable.name: levels[variable.use] for variable in model.variables}


def bands_of_use(model: ModelSpec, num_bands: int) -> Mapping[str, int]:
    """The band of each variable: those used first in band 0, and about as many bytes in each."""
    bands: dict[str, int] = {}
    num_before = 0
    for variable in sorted(model.variables, key=lambda variable: variable.use):
        # By its middle, so that one large variable lies in the band that holds most of it.
        middle = 2 * num_before + variable.num_bytes
        bands[variable.name] = min(num_bands - 1, num_bands * middle // (2 * model.num_bytes))
        num_before += variable.num_bytes
    return bands


def need_overtaking(cluster: ClusterSpec) -> None:
    """Refuse a backend on which nothing can have priority."""
    backend = BACKENDS[cluster.backend]
    if not backend.overtakes:
        rule = "priorities need a backend on which a later transfer can go first"
        raise DoesNotApplyError(f"{backend.name} runs transfers in one static order", rule=rule)


class ServerLanes:
    """The lanes of messages to servers: each server's own, one for each band of use as far as `num_lanes` go.

    With fewer lanes than servers, servers share lanes.
    """

    def __init__(self, model: ModelSpec, num_servers: int, num_lanes: int) -> None:
        self._num_columns = min(num_servers, num_lanes)
        self._bands = bands_of_use(model, min(MAX_BANDS, num_lanes // self._num_columns))

    def lane(self, variable: str, server: int) -> int:
        """The lane of what a variable has to send to the server of that position."""
        return self._bands[variable] * self._num_columns + server % self._num_columns


def shares_nodes(cluster: ClusterSpec) -> bool:
    """Whether some node has several ranks, one of which can speak for all."""
    return any(len(group) > 1 for group in cluster.worker_groups())
