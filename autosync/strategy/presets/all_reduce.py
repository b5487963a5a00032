"""The presets of all-reduce: one for each variable, or buckets that are first reduced within nodes."""

from __future__ import annotations

from typing import cast, get_args

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.presets.buckets import DEFAULT_CAP_BYTES, ready_buckets
from autosync.strategy.presets.common import in_ready_order, rows_message, travels_as_rows
from autosync.strategy.presets.options import size_option, word_option
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.base import Topology


def all_reduce_per_variable(model: ModelSpec, cluster: ClusterSpec, *, topology: str = "native") -> Strategy:
    """One all-reduce for each gradient, as soon as it is ready, over the topology asked for.

    This gives the most overlap and the most messages. Rows of embeddings are gathered.

    Source: Horovod without tensor fusion (`HOROVOD_FUSION_THRESHOLD=0`; Sergeev and Del Balso, "Horovod", 2018) and
    AutoDist's `AllReduce` with `chunk_size=1` (autodist/strategy/all_reduce_strategy.py); wait-free backpropagation
    is section 3.1 of Zhang et al., "Poseidon", USENIX ATC 2017. Ring: Patarasuk and Yuan, JPDC 2009; halving-doubling
    and tree: Thakur, Rabenseifner and Gropp, IJHPCA 2005.
    """
    del cluster  # the same on every cluster
    synchroniser = AllReduce(topology=topology_option(topology))
    return Strategy(
        messages=tuple(
            rows_message(variable)
            if travels_as_rows(variable, model)
            else Message(parts=(variable.name,), synchroniser=synchroniser)
            for variable in in_ready_order(model.variables)
        )
    )


def hierarchical(
    model: ModelSpec, cluster: ClusterSpec, *, cap_bytes: int | str = DEFAULT_CAP_BYTES, topology: str = "native"
) -> Strategy:
    """Buckets as in ddp_cap, reduced within each node first, then between nodes, then spread within nodes.

    Needs a cluster with several nodes, one of them with several ranks; on other clusters use `ddp_cap`. Rows of
    embeddings are gathered.

    Source: Horovod's `NCCLHierarchicalAllreduce` (horovod/common/ops/nccl_operations.cc,
    `HOROVOD_HIERARCHICAL_ALLREDUCE`); Jia et al., "Highly Scalable Deep Learning Training System with
    Mixed-Precision", 2018.
    """
    groups = cluster.worker_groups()
    if len(groups) == 1 or all(len(group) == 1 for group in groups):
        shape = "one node" if len(groups) == 1 else "one rank on every node"
        raise DoesNotApplyError(
            f"{cluster.name} has {shape}", rule="a hierarchy needs several nodes, one of them with several ranks"
        )
    synchroniser = AllReduce(topology=topology_option(topology), hierarchical=True)
    cap = size_option("cap_bytes", cap_bytes)
    messages = ready_buckets(model, (cap,), synchroniser, stands_alone=lambda v: travels_as_rows(v, model))
    return Strategy(messages=messages)


def topology_option(value: object) -> Topology:
    """Return an option's value as a topology of all-reduce; raise InputError if it is none."""
    return cast("Topology", word_option("topology", value, get_args(Topology)))
