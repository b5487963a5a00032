"""Random strategies over trees: of models and clusters of any kind, some messages by `levels`, some by any trees.

They are all-reduced, or sharded among the roots.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from autosync.specs.cluster import BackendName, ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.codecs import Cast, PowerSGD
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.space import Space
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.base import Synchroniser
from autosync.strategy.synchronisers.sharded import Sharded
from tests.helpers.random_specs import random_cluster, random_model
from tests.helpers.random_trees import random_shape
from tests.plan.reference.plan_properties import WIDE, Case


def draw_over_trees(rng: random.Random, count: int, *, backend: BackendName = "gloo") -> Iterator[Case]:
    """So many strategies with at least one message over trees; on NCCL, where trees are not legal, by `levels`."""
    drawn = 0
    while drawn < count:
        model, cluster = random_model(rng), _maybe_in_pods(rng, random_cluster(rng, backends=(backend,)))
        if cluster.num_workers < 2:
            continue
        limits = replace(WIDE, allow=rng.choice(((), (), ("lossy",))))
        strategy = Space(model=model, cluster=cluster, limits=limits).sample(rng)
        treed = over_trees(rng, strategy, model, cluster)
        if treed != strategy:
            yield Case(model=model, cluster=cluster, strategy=treed, seed=rng.randrange(2**32))
            drawn += 1


def over_trees(rng: random.Random, strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Strategy:
    """The same strategy, with each message over levels or any trees that may go so."""
    messages = [_over_trees(rng, message, model, cluster) for message in strategy.messages]
    return replace(strategy, messages=tuple(messages))


def _maybe_in_pods(rng: random.Random, cluster: ClusterSpec) -> ClusterSpec:
    """The same cluster, or one whose racks stand in a pod, all or some of them."""
    if not cluster.racks or rng.random() < 0.5:
        return cluster
    pod = replace(cluster.racks[0], name="pod")
    racks = [replace(rack, rack="pod") if rng.random() < 0.7 else rack for rack in cluster.racks]
    return replace(cluster, racks=(pod, *racks))


def _over_trees(rng: random.Random, message: Message, model: ModelSpec, cluster: ClusterSpec) -> Message:
    """The same message over trees, if it is one that every rank gets the sum of, or else as it was."""
    is_dense = not message.synchroniser.travels_alone and not message.synchroniser.is_stale
    if not is_dense or not (message.codec is None or isinstance(message.codec, Cast | PowerSGD)):
        return message
    if isinstance(message.codec, PowerSGD) and not isinstance(message.synchroniser, AllReduce):
        return message
    if cluster.backend == "nccl":
        return replace(message, synchroniser=AllReduce(topology="levels"))
    is_shardable = model.optimizer.elementwise and not isinstance(message.codec, PowerSGD)
    if is_shardable and rng.random() < 0.4:
        return replace(message, synchroniser=_shards(rng, cluster))
    return replace(message, synchroniser=_trees(rng, cluster, is_encoded=message.codec is not None))


def _shards(rng: random.Random, cluster: ClusterSpec) -> Synchroniser:
    """Shards over levels or any trees over workers; some workers may own nothing."""
    if rng.random() < 0.3:
        return Sharded(topology="levels")
    return Sharded(topology="trees", trees=random_shape(rng, cluster.num_workers, max_shares=5).shares)


def _trees(rng: random.Random, cluster: ClusterSpec, *, is_encoded: bool) -> Synchroniser:
    """Levels, any trees over workers, or any trees over workers and servers."""
    num_servers = 0 if is_encoded else rng.randint(0, len(cluster.ranks) - cluster.num_workers)
    if rng.random() < 0.5:
        return AllReduce(topology="levels")
    shape = random_shape(rng, cluster.num_workers + num_servers, num_servers=num_servers, max_shares=4)
    return AllReduce(topology="trees", trees=shape.shares)
