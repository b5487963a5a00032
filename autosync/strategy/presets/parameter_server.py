"""The presets of parameter servers: one server for all, one for each variable, or variables cut over all servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.cuts import even_sizes, sizes_by_shares, smallest_divisor, smallest_non_divisor
from autosync.strategy.legality import MAX_PARTS
from autosync.strategy.parts import Partition, parts_of
from autosync.strategy.presets.common import ServerNodes, balanced_shares, need_elementwise
from autosync.strategy.presets.options import flag_option, word_option
from autosync.strategy.representation import Strategy


def ps_load_balanced(model: ModelSpec, cluster: ClusterSpec, *, local_proxy: bool = False) -> Strategy:
    """Each variable on one server, chosen greedily: the server that would finish it first.

    Variables are placed in the order of declaration. Servers are the nodes without devices, or all nodes if every node
    has devices. Embeddings send their rows. An optimizer that is not elementwise runs on the workers.

    Source: AutoDist's `PSLoadBalancing` (autodist/strategy/ps_lb_strategy.py), which counts bytes; the weighting of
    load by each server's bandwidth is from AutoSync's branch (autodist/strategy/auto/ps_load_balancer.py,
    `christy_load_balancer`), which draws servers at random, while this preset is greedy.
    """
    servers = ServerNodes(model, cluster, local_proxy=flag_option("local_proxy", local_proxy))
    return Strategy(messages=tuple(servers.message(parts_of(variable, None)[0]) for variable in model.variables))


def ps_partitioned(
    model: ModelSpec, cluster: ClusterSpec, *, parts: str = "per_server", local_proxy: bool = False
) -> Strategy:
    """Each variable cut along its first axis in even parts, each part on the server that would be done with it first.

    `parts` says how many: `per_server` makes one for each server (or for each row, if there are fewer rows);
    `smallest_divisor` is AutoDist's own rule, the smallest divisor above 1 of the number of rows (7 rows make 7 parts,
    8 rows make 2). `by_rate` makes one for each server, larger where its interface is faster, so that all interfaces
    finish together. Scalars are not cut. Embeddings send rows.

    Source: AutoDist's `PartitionedPS` (autodist/strategy/partitioned_ps_strategy.py, `get_num_shards`); one part for
    each server is TensorFlow's `fixed_size_partitioner(num_ps_replicas)`; Li et al., "Scaling Distributed Machine
    Learning with the Parameter Server", OSDI 2014.
    """
    need_elementwise(model, "parts are updated apart, which needs an elementwise optimizer")
    how = word_option("parts", parts, ("per_server", "smallest_divisor", "by_rate"))
    has_proxies = flag_option("local_proxy", local_proxy)
    servers = ServerNodes(model, cluster, local_proxy=has_proxies)
    if how == "by_rate":
        return _by_rate(model, servers, balanced_shares(servers.nodes, cluster, has_proxies=has_proxies))

    def num_parts_of(num_rows: int) -> int:
        return min(num_rows, len(servers.nodes)) if how == "per_server" else smallest_divisor(num_rows)

    rule = f"at most {MAX_PARTS} parts; parts=per_server cuts it evenly"
    return _partitioned(model, servers, num_parts_of, rule=rule)


def ps(model: ModelSpec, cluster: ClusterSpec, *, server: str | None = None, local_proxy: bool = False) -> Strategy:
    """All variables at one server: the first node that serves, or the one asked for.

    Servers are the nodes without devices, or all nodes if every node has devices. Embeddings send their rows. An
    optimizer that is not elementwise runs on the workers.

    Source: petuum/autodist, autodist/strategy/ps_strategy.py (`PS`: the first CPU of the resource file).
    """
    servers = ServerNodes(model, cluster, local_proxy=flag_option("local_proxy", local_proxy))
    node = (
        servers.nodes[0].name
        if server is None
        else word_option("server", server, [node.name for node in cluster.nodes])
    )
    return Strategy(messages=tuple(servers.message_at(node, parts_of(v, None)[0]) for v in model.variables))


def ps_uneven_partitioned(model: ModelSpec, cluster: ClusterSpec, *, local_proxy: bool = False) -> Strategy:
    """Each variable cut along its first axis in parts that differ by a row, each on the server done first with it.

    The number of parts is the smallest number above 1 that does *not* divide the number of rows: 8 rows make 3 parts,
    7 rows make 2; 2 rows make 2, because there is no such number. Longer parts come first. Scalars are not cut.
    Embeddings send rows.

    Source: petuum/autodist, autodist/strategy/uneven_partition_ps_strategy.py (`UnevenPartitionedPS.get_num_shards`);
    the sizes are those of TensorFlow's partitioned variables.
    """
    need_elementwise(model, "parts are updated apart, which needs an elementwise optimizer")
    servers = ServerNodes(model, cluster, local_proxy=flag_option("local_proxy", local_proxy))
    return _partitioned(model, servers, smallest_non_divisor, rule=f"at most {MAX_PARTS} parts")


def _by_rate(model: ModelSpec, servers: ServerNodes, shares: Sequence[float]) -> Strategy:
    """Return a strategy with a part of each variable for each server, as large as the server's share."""
    partitions: dict[str, Partition] = {}
    messages = []
    for variable in model.variables:
        num_rows = variable.shape[0] if variable.shape else 1
        sizes = sizes_by_shares(num_rows, shares)
        holders = [node.name for node, size in zip(servers.nodes, sizes, strict=True) if size]
        if len(holders) > 1:
            partitions[variable.name] = Partition(sizes=tuple([size for size in sizes if size]))
        parts = parts_of(variable, partitions.get(variable.name))
        messages += [servers.message_of(name, part) for name, part in zip(holders, parts, strict=True)]
    return Strategy(partitions=partitions, messages=tuple(messages))


def _partitioned(model: ModelSpec, servers: ServerNodes, num_parts_of: Callable[[int], int], *, rule: str) -> Strategy:
    """Return a strategy with each variable cut into even parts, whose number `num_parts_of` takes from its rows.

    Each part is placed on the server that would finish it first.
    """
    partitions: dict[str, Partition] = {}
    for variable in model.variables:
        num_rows = variable.shape[0] if variable.shape else 1
        num_parts = num_parts_of(num_rows)
        if num_parts > MAX_PARTS:
            raise DoesNotApplyError(f"{variable.name} would be cut into {num_parts} parts", rule=rule)
        if num_parts > 1:
            partitions[variable.name] = Partition(sizes=even_sizes(num_rows, num_parts))
    return Strategy(
        partitions=partitions,
        messages=tuple(
            servers.message(part)
            for variable in model.variables
            for part in parts_of(variable, partitions.get(variable.name))
        ),
    )
