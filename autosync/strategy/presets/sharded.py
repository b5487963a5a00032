"""The preset of ZeRO stage 1, which spreads optimizer state over the ranks."""

from __future__ import annotations

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.backends import BACKENDS
from autosync.strategy.presets.buckets import DEFAULT_CAP_BYTES, ready_buckets
from autosync.strategy.presets.common import need_elementwise
from autosync.strategy.presets.options import flag_option, size_option
from autosync.strategy.representation import Strategy
from autosync.strategy.synchronisers.sharded import Sharded


def sharded(
    model: ModelSpec, cluster: ClusterSpec, *, cap_bytes: int | str = DEFAULT_CAP_BYTES, fitted: bool = False
) -> Strategy:
    """ZeRO stage 1: buckets are reduce-scattered, each rank updates its shard, parameters are all-gathered.

    It sends as many bytes as an all-reduce, and divides the optimizer's state and update over the ranks. Embeddings are
    dense, because ZeRO has no sparse gradients. Buckets are filled as in `ddp_cap`. With `fitted`, they go over trees
    that are fitted to the rates of interfaces and uplinks, and a rank's shard is larger where its links carry more.

    Source: Rajbhandari et al., "ZeRO", SC 2020, section 5.1 (P_os) and section 7 (reduce-scatter, then all-gather);
    buckets as in DeepSpeed's `DeepSpeedZeroOptimizer` (deepspeed/runtime/zero/stage_1_and_2.py,
    `reduce_bucket_size`).
    """
    need_elementwise(model, "shards are updated apart, which needs an elementwise optimizer")
    cap = size_option("cap_bytes", cap_bytes)
    synchroniser = Sharded()
    if flag_option("fitted", fitted):
        if not BACKENDS[cluster.backend].own_rounds:
            rule = f"trees go in rounds of tagged messages, which {cluster.backend} has not"
            raise DoesNotApplyError(f"{cluster.name} is on {cluster.backend}", rule=rule)
        if cluster.num_workers < 2:
            raise DoesNotApplyError(f"{cluster.name} has one worker", rule="shards need two workers or more")
        # It loads numpy, which the other presets do not need.
        from autosync.strategy.shapes.fitting import fitted_shares

        synchroniser = Sharded(topology="trees", trees=fitted_shares(cluster, takes_servers=False))
    return Strategy(messages=ready_buckets(model, (cap,), synchroniser))
