"""The preset of Horovod's tensor fusion: gradients that are ready in the same cycle are fused up to a threshold."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, Variable
from autosync.strategy.presets.common import in_ready_order, rows_message, travels_as_rows
from autosync.strategy.presets.options import size_option, time_option
from autosync.strategy.presets.scheduling import ready_seconds
from autosync.strategy.representation import Message, Strategy

# Horovod 0.28; 64 MiB and 5 ms up to 0.20.
THRESHOLD_BYTES = 128 * 1024 * 1024
CYCLE_TIME = "1 ms"
# The size of a fusion buffer is a multiple of this for each rank of a node.
_ATOMIC_UNIT_BYTES = 64 * 8


def horovod_fusion(
    model: ModelSpec,
    cluster: ClusterSpec,
    *,
    threshold_bytes: int | str = THRESHOLD_BYTES,
    cycle_time: str = CYCLE_TIME,
) -> Strategy:
    """Tensor fusion: gradients that are ready in the same cycle are all-reduced together, up to a threshold.

    In every `cycle_time` Horovod finds the gradients that have become ready and fuses them, in that order, into buffers
    of up to `threshold_bytes`, each of one dtype. It skips gradients that do not fit as long as the skipped bytes would
    fit into the buffer too. A gradient above the threshold goes alone; a threshold of 0 fuses nothing. Cycles are
    counted from the start of the backward pass by the model's timeline; without a timeline all gradients are ready at
    once. Rows of embeddings are gathered.

    Source: horovod/horovod, horovod/common/controller.cc (`FuseResponses`, `TensorFusionThresholdBytes`) and
    horovod/common/operations.cc (`BackgroundThreadLoop`: 128 MiB, 1 ms; `RunLoopOnce`). Sergeev and Del Balso,
    "Horovod", 2018, section 3.
    """
    threshold = _rounded(size_option("threshold_bytes", threshold_bytes, minimum=0), cluster)
    cycle_seconds = time_option("cycle_time", cycle_time)
    seconds = ready_seconds(model)
    cycles: dict[float, list[Variable]] = {}
    rows: list[Message] = []
    for variable in in_ready_order(model.variables):
        if travels_as_rows(variable, model):
            rows.append(rows_message(variable))
        else:
            cycles.setdefault(_cycle(seconds[variable.name], cycle_seconds), []).append(variable)
    fused = [group for variables in cycles.values() for group in fuse(variables, threshold)]
    return Strategy(messages=(*rows, *(Message(parts=tuple(v.name for v in group)) for group in fused)))


def _cycle(ready: float, cycle_seconds: float) -> float:
    """Return the number of the cycle at whose end a gradient is found ready; with a cycle time of 0, its own time."""
    return math.ceil(ready / cycle_seconds) if cycle_seconds else ready


def _rounded(threshold_bytes: int, cluster: ClusterSpec) -> int:
    """Return the threshold rounded up as in Horovod, which rounds only if all nodes have equally many ranks."""
    sizes = {len(group) for group in cluster.worker_groups()}
    if len(sizes) > 1:
        return threshold_bytes
    unit = _ATOMIC_UNIT_BYTES * sizes.pop()
    return -(-threshold_bytes // unit) * unit


def fuse(ready: Sequence[Variable], threshold_bytes: int) -> list[list[Variable]]:
    """Return the groups in which Horovod all-reduces gradients that become ready in the same cycle."""
    groups: list[list[Variable]] = []
    waiting = list(ready)
    while waiting:
        first, *others = waiting
        group, waiting = [first], []
        filled_bytes, skipped_bytes = first.num_bytes, 0
        for position, variable in enumerate(others):
            if variable.dtype == first.dtype and filled_bytes + variable.num_bytes <= threshold_bytes:
                group.append(variable)
                filled_bytes += variable.num_bytes
                continue
            skipped_bytes += variable.num_bytes
            if filled_bytes + skipped_bytes > threshold_bytes:
                waiting.extend(others[position:])
                break
            waiting.append(variable)
        groups.append(group)
    return groups
