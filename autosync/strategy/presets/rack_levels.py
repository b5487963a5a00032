"""The preset of clusters with racks: buckets that go by node, rack and uplink, or over trees fitted to the rates."""

from __future__ import annotations

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.backends import BACKENDS
from autosync.strategy.presets.buckets import DEFAULT_CAP_BYTES, ready_buckets
from autosync.strategy.presets.common import travels_as_rows
from autosync.strategy.presets.options import flag_option, size_option
from autosync.strategy.representation import Strategy
from autosync.strategy.shapes.levels import worker_racks
from autosync.strategy.synchronisers.all_reduce import AllReduce


def rack_levels(
    model: ModelSpec, cluster: ClusterSpec, *, cap_bytes: int | str = DEFAULT_CAP_BYTES, fitted: bool = False
) -> Strategy:
    """Buckets as in ddp_cap, reduced within nodes, within racks, between racks, and spread the same way back.

    The leader of a rack changes from share to share, so every interface and uplink carries its part. With `fitted`, the
    buckets go over trees that are fitted to the rates of interfaces and uplinks. Needs workers in two racks or more.
    Rows of embeddings are gathered.

    Source: Jia et al., "Highly Scalable Deep Learning Training System with Mixed-Precision", 2018 (reduce within, then
    between groups); Cho et al., "BlueConnect", MLSys 2019 (levels of a network, all members at work); for fitted trees
    Wang et al., "Blink", MLSys 2020 (spanning trees packed by a linear programme).
    """
    racks = worker_racks(cluster)
    if not cluster.racks or len(racks) < 2:
        raise DoesNotApplyError(f"{cluster.name} has workers in one rack", rule="levels need workers in several racks")
    if flag_option("fitted", fitted):
        if not BACKENDS[cluster.backend].own_rounds:
            rule = f"trees go in rounds of tagged messages, which {cluster.backend} has not"
            raise DoesNotApplyError(f"fitted trees on {cluster.backend}", rule=rule)
        synchroniser = AllReduce.fitted(cluster)
    else:
        synchroniser = AllReduce(topology="levels")
    cap = size_option("cap_bytes", cap_bytes)
    messages = ready_buckets(model, (cap,), synchroniser, stands_alone=lambda v: travels_as_rows(v, model))
    return Strategy(messages=messages)
