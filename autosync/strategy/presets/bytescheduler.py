"""The preset of ByteScheduler: gradients that the next forward pass needs first go first."""

from __future__ import annotations

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, Variable
from autosync.strategy.presets.common import in_ready_order, rows_message, travels_as_rows
from autosync.strategy.presets.options import count_option, size_option
from autosync.strategy.presets.scheduling import bands_of_use, need_overtaking, use_levels
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce

# ByteScheduler's defaults: 1,000,000 parameters of four bytes in a piece, and 4,000,000 in transfer at once.
PIECE_BYTES = 4_000_000
NUM_LANES = 4


def bytescheduler(
    model: ModelSpec, cluster: ClusterSpec, *, slice_bytes: int | str = PIECE_BYTES, num_lanes: int = NUM_LANES
) -> Strategy:
    """Each gradient in slices, those of the first layers first, overlapped with the next forward pass too.

    Priority is the position of a variable's first use. Transfers cannot overtake within a lane, so variables are dealt
    to `num_lanes` lanes in bands of use of about equal bytes: the gradients of an earlier layer overtake those of a
    later layer at the next slice. Rows of embeddings are gathered without slices. Needs a backend on which a later
    transfer can overtake.

    Source: Peng et al., "A Generic Communication Scheduler for Distributed DNN Training Acceleration", SOSP 2019
    (partition, priority, credit); default sizes from bytescheduler/common/bytecore.py in bytedance/byteps
    (`BYTESCHEDULER_PARTITION` of 1,000,000 parameters, `BYTESCHEDULER_CREDIT` of 4,000,000, so four pieces at once).
    """
    need_overtaking(cluster)
    size = size_option("slice_bytes", slice_bytes, minimum=1024)
    lanes = bands_of_use(model, count_option("num_lanes", num_lanes))
    levels = use_levels(model)
    return Strategy(
        overlap="forward",
        messages=tuple(
            _message(variable, model, slice_bytes=size, priority=levels[variable.name], lane=lanes[variable.name])
            for variable in in_ready_order(model.variables)
        ),
    )


def _message(variable: Variable, model: ModelSpec, *, slice_bytes: int, priority: int, lane: int) -> Message:
    if travels_as_rows(variable, model):
        return rows_message(variable, priority=priority, lane=lane)
    return Message(
        parts=(variable.name,), synchroniser=AllReduce(), priority=priority, lane=lane, slice_bytes=slice_bytes
    )
