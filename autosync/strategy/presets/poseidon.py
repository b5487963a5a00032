"""The preset of Poseidon: sufficient factors where they take fewer bytes than a parameter server."""

from __future__ import annotations

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, Variable
from autosync.strategy.cuts import even_sizes
from autosync.strategy.legality import MAX_PARTS
from autosync.strategy.parts import Partition, parts_of
from autosync.strategy.presets.common import ServerNodes, travels_as_rows
from autosync.strategy.presets.options import size_option
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.sufficient_factors import SufficientFactors

PAIR_BYTES = 2 * 1024 * 1024


def poseidon(model: ModelSpec, cluster: ClusterSpec, *, pair_bytes: int | str = PAIR_BYTES) -> Strategy:
    """Sufficient factors for linear layers where they are fewer bytes, parameter servers for all else.

    For a matrix of M x N, K rows of factors on each rank, P1 workers and P2 servers, factors travel if 2K(P1-1)(M+N) <=
    2MN(P1+P2-2)/P2. All other variables go through servers, cut along their first axis into pieces of about
    `pair_bytes` that are spread by load (not cut if the optimizer is not elementwise). Needs a linear variable (a
    matrix used once a step and not tied) and no gradient accumulation.

    Source: Zhang et al., "Poseidon: An Efficient Communication Architecture for Distributed Deep Learning on GPU
    Clusters", USENIX ATC 2017, Table 1 and Algorithm 1 (`BestScheme`) in section 3.2, and its key-value pairs of a
    fixed 2 MB; factors are from Xie et al., UAI 2016. AutoDist's `Poseidon` (autodist/strategy/poseidon_strategy.py)
    has the same rule.
    """
    if model.accumulation_steps > 1:
        rule = "factors of several microsteps do not add up: accumulation_steps of 1"
        raise DoesNotApplyError(f"{model.name} accumulates {model.accumulation_steps} microsteps", rule=rule)
    if not any(variable.kind == "linear" for variable in model.variables):
        rule = "sufficient factors are of linear variables: matrices used once a step and not tied"
        raise DoesNotApplyError(f"{model.name} has no linear variable", rule=rule)
    limit = size_option("pair_bytes", pair_bytes)
    servers = ServerNodes(model, cluster)
    partitions: dict[str, Partition] = {}
    messages: list[Message] = []
    for variable in model.variables:
        if factors_are_fewer(variable, num_workers=cluster.num_workers, num_servers=len(servers.nodes)):
            messages.append(Message(parts=(variable.name,), synchroniser=SufficientFactors()))
            continue
        num_parts = _num_pairs(variable, model, limit)
        if num_parts > 1:
            partitions[variable.name] = Partition(sizes=even_sizes(variable.shape[0], num_parts))
        messages.extend(servers.message(part) for part in parts_of(variable, partitions.get(variable.name)))
    return Strategy(partitions=partitions, messages=tuple(messages))


def factors_are_fewer(variable: Variable, *, num_workers: int, num_servers: int) -> bool:
    """Whether factors take fewer bytes than servers, by Algorithm 1; both sides are multiplied by P2 to stay whole."""
    if variable.kind != "linear":
        return False
    assert variable.factor_rows is not None, "linear variables have factors"
    rows, columns = variable.shape
    by_factors = 2 * variable.factor_rows * (num_workers - 1) * (rows + columns)
    by_servers = 2 * rows * columns * (num_workers + num_servers - 2)
    return by_factors * num_servers <= by_servers


def _num_pairs(variable: Variable, model: ModelSpec, limit_bytes: int) -> int:
    # Embeddings that send rows are small on the wire, and an optimizer that needs whole parameters forbids cuts.
    if not variable.shape or not model.optimizer.elementwise or travels_as_rows(variable, model):
        return 1
    return min(-(-variable.num_bytes // limit_bytes), variable.shape[0], MAX_PARTS)
