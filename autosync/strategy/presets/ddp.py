"""The presets of torch's DistributedDataParallel, which most users have today: the baseline of every comparison."""

from __future__ import annotations

import sys

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, Variable
from autosync.strategy.presets.buckets import (
    DEFAULT_CAP_BYTES,
    DEFAULT_FIRST_CAP_BYTES,
    assign_by_size,
    bucket_messages,
    ready_buckets,
)
from autosync.strategy.presets.common import in_ready_order, is_sparse_to_ddp
from autosync.strategy.presets.options import flag_option, size_option
from autosync.strategy.representation import Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce


def ddp(
    model: ModelSpec,
    cluster: ClusterSpec,
    *,
    rebuilt: bool = True,
    find_unused_parameters: bool = False,
) -> Strategy:
    """Stock DistributedDataParallel of torch 2.13: buckets of 25 MiB after a first one of 1 MiB, one all-reduce each.

    These are the buckets with `bucket_cap_mb=None`. After its first iteration DDP rebuilds its buckets once, in the
    order in which gradients became ready, with a small first bucket. `rebuilt=False` gives the buckets of that first
    iteration: one for each dtype, because the order is not known yet. With `find_unused_parameters=True` DDP never
    rebuilds: its buckets are filled in the order of declaration and used from the last to the first, so the small one
    goes last. Sparse gradients have their own buckets, and their all-reduce gathers rows. (This is on gloo; stock NCCL
    cannot reduce sparse gradients, so embeddings must be dense there.)

    Source: torch/nn/parallel/distributed.py, `_BucketCapacityConfig` and `DistributedDataParallel._ddp_init_helper`;
    torch/csrc/distributed/c10d/reducer.cpp, `compute_bucket_assignment_by_size` and `Reducer::rebuild_buckets`;
    ProcessGroupGloo.cpp, `AsyncSparseAllreduceWork`. Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.
    """
    default_limits = (DEFAULT_FIRST_CAP_BYTES, DEFAULT_CAP_BYTES)

    def stands_alone(variable: Variable) -> bool:
        return is_sparse_to_ddp(variable, model, cluster)

    # A lane orders messages by when they are ready, so the reverse order of the first buckets need not be written.
    if flag_option("find_unused_parameters", find_unused_parameters):
        buckets = assign_by_size(model.variables, default_limits, stands_alone)
    elif flag_option("rebuilt", rebuilt):
        buckets = assign_by_size(in_ready_order(model.variables), default_limits, stands_alone)
    else:
        buckets = assign_by_size(model.variables, (sys.maxsize,), stands_alone)
    return Strategy(messages=bucket_messages(buckets, AllReduce(), stands_alone))


def ddp_cap(model: ModelSpec, cluster: ClusterSpec, *, cap_bytes: int | str = DEFAULT_CAP_BYTES) -> Strategy:
    """DistributedDataParallel with one bucket cap: an explicit cap, even of 25 MiB, drops the small first bucket.

    `cap_bytes` is `bucket_cap_mb` in bytes. Sparse gradients have their own buckets.

    Source: torch 2.13, torch/nn/parallel/distributed.py, `_BucketCapacityConfig.create` (`first_bucket_bytes_cap`);
    buckets as in `ddp`.
    """
    cap = size_option("cap_bytes", cap_bytes)
    messages = ready_buckets(model, (cap,), AllReduce(), stands_alone=lambda v: is_sparse_to_ddp(v, model, cluster))
    return Strategy(messages=messages)
