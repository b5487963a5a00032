"""The count against enumeration: every representation written out, each shown to the rules."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from autosync import jsonio
from autosync.documents import to_plain
from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec, OptimizerSpec, Timeline, Variable
from autosync.strategy.canonical import canonical_synchroniser
from autosync.strategy.codecs import Cast, Codec, PowerSGD, Sign
from autosync.strategy.legality import message_problems
from autosync.strategy.parts import Part, Partition, parts_of
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.shapes.fitting import fitted_shares
from autosync.strategy.shapes.links import trees_may_gain
from autosync.strategy.space import Limits, Space
from autosync.strategy.space.counting import _Factor, _log_poisson_mean
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.base import Synchroniser
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.periodic import Periodic
from autosync.strategy.synchronisers.sharded import Sharded
from autosync.strategy.synchronisers.sparse_gather import SparseGather
from autosync.strategy.synchronisers.sufficient_factors import SufficientFactors

T = TypeVar("T")


def _model(*variables: Variable, elementwise: bool = True, per_variable: bool | None = None) -> ModelSpec:
    timeline = Timeline(device="none", source="computed", forward=(), backward=())
    optimizer = OptimizerSpec(name="SGD", elementwise=elementwise, per_variable=per_variable, sparse=True)
    ordered = tuple(replace(variable, use=place, ready=place) for place, variable in enumerate(variables))
    return ModelSpec(name="tiny", optimizer=optimizer, variables=ordered, timeline=timeline)


def _cluster(*devices: int) -> ClusterSpec:
    nodes = tuple(
        Node(
            name=f"n{index}",
            host="h",
            role="worker" if count else "server",
            devices=count,
            bandwidth_out=1e8,
            bandwidth_in=1e8,
        )
        for index, count in enumerate(devices)
    )
    return ClusterSpec(name="tiny", nodes=nodes)


VECTOR = Variable(name="vector", shape=(3,), use=0, ready=0)
MATRIX = Variable(name="matrix", shape=(2, 2), kind="linear", factor_rows=1, use=1, ready=1)
HALF = Variable(name="half", shape=(), dtype="float16", use=2, ready=2)
TABLE = Variable(name="table", shape=(2, 1), kind="embedding", touched_rows=1.0, max_touched_rows=1, use=0, ready=0)

FEW = Limits(
    overlaps=("backward", "forward"),
    synchronisers=("all_reduce",),
    topologies=("native",),
    max_parts=3,
    slice_bytes=(1024,),
    max_lanes=1,
    max_priorities=1,
)
ALL = Limits(max_parts=2, slice_bytes=(1024,), max_lanes=1, max_priorities=2)


def _set_partitions(items: Sequence[T]) -> Iterator[list[list[T]]]:
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for blocks in _set_partitions(rest):
        yield [[first], *blocks]
        for index, block in enumerate(blocks):
            yield [*blocks[:index], [first, *block], *blocks[index + 1 :]]


def _compositions(size: int, num_parts: int) -> Iterator[tuple[int, ...]]:
    for bounds in itertools.combinations(range(1, size), num_parts - 1):
        yield tuple(end - begin for begin, end in itertools.pairwise((0, *bounds, size)))


def _cuts(variable: Variable, limits: Limits) -> Iterator[Partition | None]:
    yield None
    for axis, size in enumerate(variable.shape):
        for num_parts in range(2, min(size, limits.max_parts) + 1):
            for sizes in _compositions(size, num_parts):
                yield Partition(axis=axis, sizes=sizes)


def _everything(cluster: ClusterSpec) -> Iterator[Synchroniser]:
    topologies = ("native", "ring", "tree", "halving_doubling")
    for topology, hierarchical in itertools.product(topologies, (False, True)):
        yield AllReduce(topology=topology, hierarchical=hierarchical)
    for node, update, proxy, sparse, lag in itertools.product(
        cluster.nodes, ("server", "worker"), (False, True), (False, True), (0, 1, 2, 4)
    ):
        if not (lag and update == "worker"):
            yield ParameterServer(server=node.name, update=update, local_proxy=proxy, sparse=sparse, staleness=lag)
    for topology in ("native", "ring", "halving_doubling"):
        yield Sharded(topology=topology)
    for topology in ("native", "ring"):
        yield SparseGather(topology=topology)
        yield SufficientFactors(topology=topology)
    for topology, every in itertools.product(topologies, (2, 4)):
        yield Periodic(every=every, topology=topology)
    if trees_may_gain(cluster, takes_servers=True):
        yield AllReduce.fitted(cluster)
    if trees_may_gain(cluster, takes_servers=False):
        trees = fitted_shares(cluster, takes_servers=False)
        yield canonical_synchroniser(Sharded(topology="trees", trees=trees), cluster)


def _candidates(space: Space) -> list[Message]:
    """A message for every value of every aspect; synchronisers in canonical form stand for the rest."""
    cluster, limits = space.cluster, space.limits
    codecs: tuple[Codec | None, ...] = (None, *limits.codecs)
    found = itertools.product(
        [s for s in _everything(cluster) if canonical_synchroniser(s, cluster) == s],
        codecs,
        (None, *limits.slice_bytes),
        range(limits.max_lanes),
        range(limits.max_priorities),
    )
    messages = [
        Message(parts=("?",), synchroniser=s, codec=codec, slice_bytes=size, lane=lane, priority=priority)
        for s, codec, size, lane, priority in found
    ]
    return [m for m in messages if not list(limits.problems(Strategy(overlap=limits.overlaps[0], messages=(m,)), {}))]


def _enumerated(space: Space) -> int:
    """All cuts, all ways to distribute the parts, and for each message all settings that the rules let through."""
    model, candidates = space.model, _candidates(space)
    total = 0
    for cuts in itertools.product(*[list(_cuts(variable, space.limits)) for variable in model.variables]):
        parts = [p for variable, cut in zip(model.variables, cuts, strict=True) for p in parts_of(variable, cut)]
        if any(cuts) and not model.optimizer.elementwise:
            continue

        @functools.cache
        def num_messages(block: tuple[Part, ...]) -> int:
            return sum(not message_problems(m, block, model, space.cluster) for m in candidates)

        for blocks in _set_partitions(parts):
            total += math.prod(num_messages(tuple(block)) for block in blocks)
    return total * sum(one == "backward" or model.optimizer.updates_apart for one in space.limits.overlaps)


CASES = {
    "cuts of a vector": (_model(VECTOR), (1, 1), FEW),
    "two variables": (_model(VECTOR, MATRIX), (1, 1), replace(FEW, max_parts=2)),
    "two dtypes": (_model(MATRIX, HALF), (1, 1), FEW),
    "no cuts without an elementwise optimizer": (
        _model(VECTOR, MATRIX, elementwise=False, per_variable=True),
        (2, 1),
        FEW,
    ),
    "no overlap forward where all is updated together": (
        _model(VECTOR, MATRIX, elementwise=False, per_variable=False),
        (1, 1),
        FEW,
    ),
    "nor where that is not known": (_model(VECTOR, elementwise=False), (1, 1), FEW),
    "lanes and priorities": (_model(VECTOR, HALF), (1, 1), replace(FEW, max_lanes=2, max_priorities=3)),
    "every synchroniser, one rank a node": (_model(VECTOR, MATRIX, TABLE), (1, 1, 1), ALL),
    "every synchroniser, two ranks a node": (_model(MATRIX, TABLE), (2, 2), ALL),
    "every synchroniser, one worker": (_model(MATRIX, TABLE), (1, 0), replace(ALL, synchronisers=("all_reduce",))),
    "a server without a device": (_model(VECTOR, TABLE), (2, 0), ALL),
    "stale": (_model(VECTOR, TABLE), (1, 2), replace(ALL, allow=("stale",), periods=(2, 4), outer_optimizers=(None,))),
    "codecs": (_model(VECTOR, MATRIX), (1, 1), replace(ALL, allow=("lossy",), codecs=(Cast(), Sign()))),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_count_is_that_of_an_enumeration(case: tuple[ModelSpec, tuple[int, ...], Limits]) -> None:
    model, devices, limits = case
    space = Space(model=model, cluster=_cluster(*devices), limits=limits)
    assert 10 ** space.log10_size() == pytest.approx(_enumerated(space), rel=1e-9)


def test_the_count_is_that_of_strategies_that_the_space_contains() -> None:
    model, limits = _model(VECTOR, HALF), replace(FEW, max_parts=2, max_lanes=2, uneven_parts=True)
    space = Space(model=model, cluster=_cluster(1, 1), limits=limits)
    candidates = _candidates(space)
    found = set()
    for cut in _cuts(VECTOR, limits):
        names = [str(part.name) for variable, c in ((VECTOR, cut), (HALF, None)) for part in parts_of(variable, c)]
        for blocks in _set_partitions(names):
            for chosen in itertools.product(candidates, repeat=len(blocks)):
                messages = tuple(replace(m, parts=tuple(block)) for m, block in zip(chosen, blocks, strict=True))
                for overlap in limits.overlaps:
                    partitions = {"vector": cut} if cut else {}
                    strategy = Strategy(overlap=overlap, partitions=partitions, messages=messages)
                    if space.contains(strategy):
                        found.add(jsonio.canonical_json(to_plain(strategy)))
    assert 10 ** space.log10_size() == pytest.approx(len(found), rel=1e-9)


def test_power_sgd_is_counted_where_it_travels_alone() -> None:
    wide = replace(MATRIX, kind="dense", factor_rows=None)
    limits = replace(FEW, allow=("lossy",), codecs=(PowerSGD(rank=1),), slice_bytes=(), max_parts=1)
    two = _model(wide, replace(wide, name="other", use=2, ready=0))
    space = Space(model=two, cluster=_cluster(1, 1), limits=limits)
    # Apart: 2 x 2; together: plain, and PowerSGD, which is the one that is left out.
    assert _enumerated(space) == 2 * (4 + 2)
    assert 10 ** space.log10_size() == pytest.approx(2 * (4 + 1))


def _exact(log_cuts: Sequence[Sequence[int]], alone: int, mean: int) -> int:
    """The product as a polynomial in x + alone, with the moments of a Poisson variable (Touchard) for powers of x."""
    polynomial = [1]
    for ways in log_cuts:
        factor = [0] * (len(ways) + 2)
        for power, count in enumerate((1, *ways), start=1):
            for j in range(power + 1):
                factor[j] += count * math.comb(power, j) * alone ** (power - j)
        product = [0] * (len(polynomial) + len(factor) - 1)
        for i, a in enumerate(polynomial):
            for j, b in enumerate(factor):
                product[i + j] += a * b
        polynomial = product
    # T_(n+1)(s) = s * sum_k C(n, k) T_k(s)
    moments = [1]
    for n in range(len(polynomial) - 1):
        moments.append(mean * sum(math.comb(n, k) * moments[k] for k in range(n + 1)))
    return sum(a * m for a, m in zip(polynomial, moments, strict=True))


@pytest.mark.parametrize("mean", [1, 3, 1000, 10**6, 10**9])
@pytest.mark.parametrize("alone", [0, 7, 10**6])
def test_large_counts_against_exact_arithmetic(mean: int, alone: int) -> None:
    cuts = [[count * 5 for count in range(1, 9)]] * 12 + [[]] * 20
    factors = Counter(_Factor(alone, alone, tuple(math.log(ways) for ways in each)) for each in cuts)
    found = _log_poisson_mean(list(factors.items()), mean, sum(len(each) + 1 for each in cuts))
    assert found == pytest.approx(math.log(_exact(cuts, alone, mean)), rel=1e-8)


def test_only_alone() -> None:
    factors = [(_Factor(3, 5, (math.log(2.0),)), 2)]
    # Uncut in 5 ways, or cut in 2 ways with 3 x 3 settings; twice.
    assert math.exp(_log_poisson_mean(factors, 0, 4)) == pytest.approx((5 + 2 * 9) ** 2)


def test_wider_limits_hold_more() -> None:
    def size(limits: Limits) -> float:
        return Space(model=_model(VECTOR, MATRIX, HALF), cluster=_cluster(2, 2), limits=limits).log10_size()

    sizes = [size(limits) for limits in (FEW, replace(FEW, uneven_parts=False), Limits(), Limits(allow=("lossy",)))]
    assert sizes[1] < sizes[0] < sizes[2] < sizes[3]


def test_a_space_without_an_overlap_is_refused() -> None:
    with pytest.raises(DoesNotApplyError, match=r"limits\.overlaps: overlap forward with SGD \(it needs an optimizer"):
        Space(model=_model(VECTOR, elementwise=False), cluster=_cluster(1), limits=replace(FEW, overlaps=("forward",)))
