"""Parameter servers: whole variables on one server each, or cut over all of them."""

from __future__ import annotations

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, Variable
from autosync.strategy.legality import MAX_PARTS
from autosync.strategy.parts import parts_of
from autosync.strategy.presets.common import Servers, need_elementwise
from autosync.strategy.presets.options import flag_option, word_option
from autosync.strategy.representation import Partition, Strategy


def ps_load_balanced(model: ModelSpec, cluster: ClusterSpec, *, local_proxy: bool = False) -> Strategy:
    """Each variable on one server, greedily on the one that would be done with it first.

    Variables are placed in the order of declaration. Servers are the nodes without devices, or all nodes where there
    are none. Embeddings send their rows. An optimizer that is not elementwise stays with the workers.

    Source: AutoDist's `PSLoadBalancing` (autodist/strategy/ps_lb_strategy.py), which counts bytes; that load is
    weighted by each server's bandwidth is from the branch of AutoSync (autodist/strategy/auto/ps_load_balancer.py,
    `christy_load_balancer`), taken greedily here, not at random.
    """
    servers = Servers(model, cluster, local_proxy=flag_option("local_proxy", local_proxy))
    return Strategy(messages=tuple(servers.message(parts_of(variable, None)[0]) for variable in model.variables))


def ps_partitioned(
    model: ModelSpec, cluster: ClusterSpec, *, parts: str = "per_server", local_proxy: bool = False
) -> Strategy:
    """Each variable cut along its first axis in even parts, each part on the server that would be done with it first.

    `parts` says how many: `per_server`, one for each server (or as many as there are rows), or AutoDist's own rule,
    `smallest_divisor`: the smallest divisor of the number of rows above 1 (7 parts of 7 rows, 2 of 8). Scalars are
    not cut. Embeddings send rows.

    Source: AutoDist's `PartitionedPS` (autodist/strategy/partitioned_ps_strategy.py, `get_num_shards`); one part a
    server is TensorFlow's `fixed_size_partitioner(num_ps_replicas)`; Li et al., "Scaling Distributed Machine Learning
    with the Parameter Server", OSDI 2014.
    """
    need_elementwise(model, "parts are updated apart, which needs an elementwise optimizer")
    rule = word_option("parts", parts, ("per_server", "smallest_divisor"))
    servers = Servers(model, cluster, local_proxy=flag_option("local_proxy", local_proxy))
    partitions: dict[str, Partition] = {}
    for variable in model.variables:
        num_rows = variable.shape[0] if variable.shape else 1
        num_parts = min(num_rows, len(servers.nodes)) if rule == "per_server" else _smallest_divisor(num_rows)
        _refuse_too_many(variable, num_parts)
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


def even_sizes(total: int, num_parts: int) -> tuple[int, ...]:
    """A number in parts that differ by one at most, larger ones first."""
    size, rest = divmod(total, num_parts)
    return (size + 1,) * rest + (size,) * (num_parts - rest)


def _smallest_divisor(number: int) -> int:
    return next((divisor for divisor in range(2, number) if number % divisor == 0), number)


def _refuse_too_many(variable: Variable, num_parts: int) -> None:
    if num_parts > MAX_PARTS:
        rule = f"at most {MAX_PARTS} parts; parts=per_server cuts it evenly"
        raise DoesNotApplyError(f"{variable.name} would be cut into {num_parts} parts", rule=rule)
