"""Helpers of presets that schedule transfers: when gradients are ready, when parameters are used, lanes of servers.

Within a lane transfers run in order, and a lane keeps only one server busy at a time. So transfers that overtake need
lanes of their own. Variables are dealt to *bands* of use of about equal bytes, and each server has a lane for each
band.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.backends import BACKENDS

MAX_BANDS = 4
"""The most bands of one server; more bands would cost more threads than they help messages to overtake."""


def ready_seconds(model: ModelSpec) -> Mapping[str, float]:
    """Return when each gradient is complete, in seconds from the start of the last backward pass of a step.

    Without a timeline all gradients are complete at 0.
    """
    backward = model.timeline.backward
    ends = itertools.accumulate(segment.seconds for segment in backward)
    known = {name: end for segment, end in zip(backward, ends, strict=True) for name in segment.variables}
    return {variable.name: known.get(variable.name, 0.0) for variable in model.variables}


def use_levels(model: ModelSpec) -> Mapping[str, int]:
    """Return the place of each variable in the order of use, from 0; variables used at the same time share a place."""
    levels = {use: level for level, use in enumerate(sorted({variable.use for variable in model.variables}))}
    return {variable.name: levels[variable.use] for variable in model.variables}


def bands_of_use(model: ModelSpec, num_bands: int) -> Mapping[str, int]:
    """Return the band of each variable: band 0 is used first, and all bands have about equally many bytes."""
    bands: dict[str, int] = {}
    num_before = 0
    for variable in sorted(model.variables, key=lambda variable: variable.use):
        # A variable's middle decides, so that a large variable is in the band that has most of its bytes.
        middle = 2 * num_before + variable.num_bytes
        bands[variable.name] = min(num_bands - 1, num_bands * middle // (2 * model.num_bytes))
        num_before += variable.num_bytes
    return bands


def need_overtaking(cluster: ClusterSpec) -> None:
    """Raise DoesNotApplyError if later transfers cannot overtake earlier ones on the cluster's backend."""
    backend = BACKENDS[cluster.backend]
    if not backend.overtakes:
        rule = "priorities need a backend on which a later transfer can go first"
        raise DoesNotApplyError(f"{backend.name} runs transfers in one static order", rule=rule)


class ServerLanes:
    """The lanes of messages to servers: each server has a lane for each band of use, as far as `num_lanes` allows.

    With fewer lanes than servers, servers share lanes.
    """

    def __init__(self, model: ModelSpec, num_servers: int, num_lanes: int) -> None:
        self._num_columns = min(num_servers, num_lanes)
        self._bands = bands_of_use(model, min(MAX_BANDS, num_lanes // self._num_columns))

    def lane(self, variable: str, server: int) -> int:
        """Return the lane in which a variable's parts go to the server at that position."""
        return self._bands[variable] * self._num_columns + server % self._num_columns


def shares_nodes(cluster: ClusterSpec) -> bool:
    """Whether a node has several ranks, so that one rank can send the sum of all to a server."""
    return any(len(group) > 1 for group in cluster.worker_groups())
