"""Merges gradients into buckets by the rule of torch's Reducer.

The rule is from torch 2.13: `compute_bucket_assignment_by_size` and `Reducer::rebuild_buckets` in
torch/csrc/distributed/c10d/reducer.cpp, and `_BucketCapacityConfig` and `DistributedDataParallel._ddp_init_helper` in
torch/nn/parallel/distributed.py. The buckets of each dtype are filled in the given order. A bucket is closed when its
size *reaches* its limit, so it may exceed the limit by up to one gradient. Each dtype goes through the limits by
itself, and the last limit repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from autosync.specs.model import ModelSpec, Variable
from autosync.strategy.presets.common import in_ready_order, rows_message
from autosync.strategy.representation import Message
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.sharded import Sharded

MIB = 1024 * 1024
DEFAULT_CAP_BYTES = 25 * MIB
DEFAULT_FIRST_CAP_BYTES = MIB


def assign_by_size(
    variables: Iterable[Variable], limits_bytes: Sequence[int], stands_alone: Callable[[Variable], bool]
) -> list[list[Variable]]:
    """Fill buckets with variables in the given order; a variable that stands alone (a sparse gradient) gets its own.

    Returns the buckets in the order in which they were closed, then those that are still open at the end.
    """
    closed: list[list[Variable]] = []
    filling: dict[str, list[Variable]] = {}
    filled_bytes: dict[str, int] = {}
    num_closed: dict[str, int] = {}
    for variable in variables:
        if stands_alone(variable):
            closed.append([variable])
            continue
        dtype = variable.dtype
        filling.setdefault(dtype, []).append(variable)
        filled_bytes[dtype] = filled_bytes.get(dtype, 0) + variable.num_bytes
        position = num_closed.get(dtype, 0)
        if filled_bytes[dtype] >= limits_bytes[min(position, len(limits_bytes) - 1)]:
            closed.append(filling.pop(dtype))
            filled_bytes[dtype] = 0
            num_closed[dtype] = position + 1
    return closed + list(filling.values())


def ready_buckets(
    model: ModelSpec,
    limits_bytes: Sequence[int],
    synchroniser: AllReduce | Sharded,
    *,
    stands_alone: Callable[[Variable], bool] = lambda _: False,
) -> tuple[Message, ...]:
    """Return messages of buckets in the order in which gradients become ready, all with one synchroniser.

    The rows of a variable that stands alone are gathered in a message of their own.
    """
    buckets = assign_by_size(in_ready_order(model.variables), limits_bytes, stands_alone)
    return bucket_messages(buckets, synchroniser, stands_alone)


def bucket_messages(
    buckets: Iterable[Sequence[Variable]], synchroniser: AllReduce | Sharded, stands_alone: Callable[[Variable], bool]
) -> tuple[Message, ...]:
    """Return one message for each bucket."""
    return tuple(
        rows_message(bucket[0])
        if stands_alone(bucket[0])
        else Message(parts=tuple(variable.name for variable in bucket), synchroniser=synchroniser)
        for bucket in buckets
    )
