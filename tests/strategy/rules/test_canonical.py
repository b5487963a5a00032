"""Each rewrite rule by its number, and what holds for all of them on drawn strategies."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync import documents
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.canonical import canonical, canonical_synchroniser, strategy_id
from autosync.strategy.codecs import Cast, Int8, Sign, TopK
from autosync.strategy.parts import Partition
from autosync.strategy.representation import Message, Overlap, Strategy
from autosync.strategy.shapes.trees import TreeShare
from autosync.strategy.space import Limits, Space
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.base import Synchroniser
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.periodic import Periodic
from autosync.strategy.synchronisers.sharded import Sharded
from autosync.strategy.synchronisers.sparse_gather import SparseGather
from autosync.strategy.synchronisers.sufficient_factors import SufficientFactors
from tests.helpers.random_specs import random_cluster, random_model

MakeStrategy = Callable[..., Strategy]
MakeCluster = Callable[..., ClusterSpec]
OUTER = OuterOptimizer()

PAIR = (TreeShare(up=(0, 0)), TreeShare(up=(1, 1), weight=2))
LONG_PAIR = (TreeShare(up=(0, 0), down=(0, 0), weight=2), TreeShare(up=(1, 1), weight=4))

# Number of the rule, ranks on each node, what is written, what it comes to.
SYNCHRONISERS: list[tuple[int, tuple[int, ...], Synchroniser, Synchroniser]] = [
    (1, (1, 1, 1), Periodic(every=1, topology="tree"), AllReduce(topology="tree")),
    (1, (1, 1, 1), Periodic(every=1, outer=OUTER), Periodic(every=1, outer=OUTER)),
    (1, (1, 1, 1), Periodic(every=2), Periodic(every=2)),
    (2, (1,), ParameterServer(server="a"), AllReduce()),
    (2, (1, 0), ParameterServer(server="b", sparse=True), AllReduce()),
    (2, (1,), Sharded(topology="ring"), AllReduce()),
    (2, (1,), SparseGather(), AllReduce()),
    (2, (1,), SufficientFactors(), AllReduce()),
    (2, (1,), AllReduce(topology="tree", hierarchical=True), AllReduce()),
    (2, (1,), Periodic(every=2), Periodic(every=2)),
    (3, (1, 1), AllReduce(topology="halving_doubling"), AllReduce(topology="ring")),
    (3, (2,), Sharded(topology="halving_doubling"), Sharded(topology="ring")),
    (3, (1, 1), Periodic(every=2, topology="halving_doubling"), Periodic(every=2, topology="ring")),
    (3, (2, 2), AllReduce(topology="halving_doubling"), AllReduce(topology="halving_doubling")),
    (
        3,
        (2, 2),
        AllReduce(topology="halving_doubling", hierarchical=True),
        AllReduce(topology="ring", hierarchical=True),
    ),
    (3, (1, 1), AllReduce(topology="tree"), AllReduce(topology="tree")),
    (3, (1, 1), AllReduce(topology="levels"), AllReduce(topology="ring")),
    (3, (1, 1, 1), AllReduce(topology="levels"), AllReduce(topology="levels")),
    (3, (1, 1), AllReduce(topology="trees", trees=PAIR), AllReduce(topology="trees", trees=PAIR)),
    (10, (1, 1), AllReduce(topology="trees", trees=LONG_PAIR), AllReduce(topology="trees", trees=PAIR)),
    (3, (1, 1), Sharded(topology="levels"), Sharded(topology="ring")),
    (10, (1, 1), Sharded(topology="trees", trees=LONG_PAIR[::-1]), Sharded(topology="trees", trees=PAIR)),
    (2, (1,), AllReduce(topology="levels"), AllReduce()),
    (4, (1, 1, 1), AllReduce(hierarchical=True), AllReduce()),
    (4, (3,), AllReduce(topology="ring", hierarchical=True), AllReduce(topology="ring")),
    (4, (2, 1), AllReduce(hierarchical=True), AllReduce(hierarchical=True)),
    (4, (1, 1), ParameterServer(server="a", local_proxy=True), ParameterServer(server="a")),
    (4, (3,), ParameterServer(server="a", local_proxy=True), ParameterServer(server="a")),
    (4, (2, 1), ParameterServer(server="a", local_proxy=True), ParameterServer(server="a", local_proxy=True)),
    # All workers on one node and the server on another: the proxy sends one gradient instead of three.
    (4, (3, 0), ParameterServer(server="b", local_proxy=True), ParameterServer(server="b", local_proxy=True)),
]


@pytest.mark.parametrize(("rule", "devices", "written", "wanted"), SYNCHRONISERS)
def test_rules_on_synchronisers(
    rule: int, devices: tuple[int, ...], written: Synchroniser, wanted: Synchroniser, make_cluster: MakeCluster
) -> None:
    cluster = make_cluster(*devices)
    assert canonical_synchroniser(written, cluster) == wanted
    assert canonical_synchroniser(wanted, cluster) == wanted


def test_rule_2_one_worker_encodes_and_slices_nothing(
    model: ModelSpec, make_cluster: MakeCluster, make_strategy: MakeStrategy
) -> None:
    plain = make_strategy(Message(parts=("fc.weight",)))
    written = make_strategy(Message(parts=("fc.weight",), codec=Sign(), slice_bytes=1024))
    for cluster, is_same in ((make_cluster(1), True), (make_cluster(2), False)):
        ids = {strategy_id(strategy, model, cluster) for strategy in (plain, written)}
        assert (len(ids) == 1) == is_same


HALVES = {"fc.weight": Partition(sizes=(8, 8))}
ONE_PART = {"fc.weight": Partition(sizes=(16,))}
BOTH = ("fc.weight[0]", "fc.weight[1]")


@pytest.mark.parametrize(
    ("written", "is_cut"),
    [
        ((ONE_PART, [Message(parts=("fc.weight[0]",))]), False),
        ((ONE_PART, [Message(parts=("fc.weight[0]",), synchroniser=SufficientFactors())]), False),
        ((HALVES, [Message(parts=BOTH)]), False),
        ((HALVES, [Message(parts=BOTH, codec=Cast())]), False),
        ((HALVES, [Message(parts=BOTH, synchroniser=Sharded())]), False),
        ((HALVES, [Message(parts=BOTH, codec=Int8())]), True),
        ((HALVES, [Message(parts=BOTH[:1]), Message(parts=BOTH[1:])]), True),
    ],
)
def test_rule_5_idle_cuts(
    written: tuple[dict[str, Partition], list[Message]],
    is_cut: bool,
    model: ModelSpec,
    cluster: ClusterSpec,
    make_strategy: MakeStrategy,
) -> None:
    partitions, messages = written
    strategy = make_strategy(*messages, partitions=partitions)
    form = canonical(strategy, model, cluster)
    assert bool(form.partitions) == is_cut
    whole = make_strategy(*[replace(message, parts=("fc.weight",)) for message in messages[:1]])
    assert (form == canonical(whole, model, cluster)) == (not is_cut)


def test_rule_6_idle_slices(model: ModelSpec, cluster: ClusterSpec, make_strategy: MakeStrategy) -> None:
    # 3200 + 512 + 64 + 4 B.
    parts = ("table", "fc.weight", "fc.bias", "scale")
    for size, kept in ((3779, 3779), (3780, None), (4096, None)):
        strategy = make_strategy(Message(parts=parts, slice_bytes=size))
        assert next(m for m in canonical(strategy, model, cluster).messages if len(m.parts) > 1).slice_bytes == kept


def _lanes_and_priorities(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> list[tuple[int, int]]:
    return [(message.lane, message.priority) for message in canonical(strategy, model, cluster).messages]


def test_rule_7_lanes_by_appearance_priorities_by_rank(
    model: ModelSpec, cluster: ClusterSpec, make_strategy: MakeStrategy
) -> None:
    # In ready order: scale, half, fc.bias, fc.weight, table.
    strategy = make_strategy(
        Message(parts=("table",), lane=2, priority=90),
        Message(parts=("fc.weight",), lane=5, priority=7),
        Message(parts=("fc.bias",), lane=2, priority=7),
        Message(parts=("half",), lane=9, priority=4),
        Message(parts=("scale",), lane=5, priority=4),
    )
    assert _lanes_and_priorities(strategy, model, cluster) == [(0, 0), (1, 0), (2, 1), (0, 1), (2, 2)]


def test_rule_7_one_lane_has_no_priorities(model: ModelSpec, cluster: ClusterSpec, make_strategy: MakeStrategy) -> None:
    strategy = make_strategy()
    messages = [replace(m, lane=3, priority=p) for p, m in enumerate(strategy.messages)]
    assert _lanes_and_priorities(replace(strategy, messages=tuple(messages)), model, cluster) == [(0, 0)] * 5


def test_rules_8_and_9_order_and_name(model: ModelSpec, cluster: ClusterSpec, make_strategy: MakeStrategy) -> None:
    halves = Partition(sizes=(8, 8))
    strategy = Strategy(
        name="mine",
        partitions={"fc.weight": halves, "fc.bias": halves},
        messages=(
            Message(parts=("fc.weight[1]", "table", "fc.bias[0]")),
            Message(parts=("fc.weight[0]", "fc.bias[1]")),
            Message(parts=("half",)),
            Message(parts=("scale",)),
        ),
    )
    form = canonical(strategy, model, cluster)
    assert form.name == ""
    assert list(form.partitions) == ["fc.bias", "fc.weight"]
    assert [message.parts for message in form.messages] == [
        ("scale",),
        ("half",),
        ("fc.bias[0]", "fc.weight[1]", "table"),
        ("fc.bias[1]", "fc.weight[0]"),
    ]


def test_rule_12_without_stages_none_of_their_settings_counts(
    model: ModelSpec, cluster: ClusterSpec, make_strategy: MakeStrategy
) -> None:
    plain = make_strategy()
    settings: list[dict[str, Any]] = [{"schedule": "gpipe"}, {"schedule": "2bw"}, {"slack": 2}, {"send_units": 3}]
    for fields in settings:
        assert legality.problems(replace(plain, **fields), model, cluster) == []
        assert canonical(replace(plain, **fields), model, cluster) == canonical(plain, model, cluster)


# On drawn strategies.

seeds = st.integers(0, 2**32 - 1)


def _draw(seed: int) -> tuple[Strategy, Space, random.Random]:
    rng = random.Random(seed)
    limits = Limits(allow=("lossy", "stale"), slice_bytes=(1024, 2048), periods=(1, 2))
    space = Space(model=random_model(rng), cluster=random_cluster(rng), limits=limits)
    return space.sample(rng), space, rng


@given(seeds)
def test_canonical_is_idempotent_and_keeps_legality(seed: int) -> None:
    strategy, space, _ = _draw(seed)
    form = canonical(strategy, space.model, space.cluster)
    assert canonical(form, space.model, space.cluster) == form
    assert legality.problems(form, space.model, space.cluster) == []


def _written_otherwise(strategy: Strategy, rng: random.Random) -> Strategy:
    messages = [replace(m, parts=tuple(rng.sample(m.parts, len(m.parts)))) for m in strategy.messages]
    rng.shuffle(messages)
    partitions = list(strategy.partitions.items())
    rng.shuffle(partitions)
    return replace(strategy, name="other", messages=tuple(messages), partitions=dict(partitions))


@given(seeds)
def test_the_order_of_writing_and_the_name_change_nothing(seed: int) -> None:
    strategy, space, rng = _draw(seed)
    other = _written_otherwise(strategy, rng)
    assert canonical(other, space.model, space.cluster) == canonical(strategy, space.model, space.cluster)
    ids = [strategy_id(each, space.model, space.cluster) for each in (strategy, other)]
    assert ids[0] == ids[1]


@given(seeds)
def test_ids_tell_canonical_forms_apart(seed: int) -> None:
    strategy, space, rng = _draw(seed)
    found: dict[str, Strategy] = {}
    for _ in range(8):
        strategy = space.mutate(strategy, rng)
        form = canonical(strategy, space.model, space.cluster)
        assert found.setdefault(strategy_id(strategy, space.model, space.cluster), form) == form
    assert len(found) == len({documents.format_json(documents.to_plain(form)) for form in found.values()})


CHANGES: list[dict[str, Any]] = [
    {"synchroniser": AllReduce(topology="ring")},
    {"synchroniser": ParameterServer(server="a")},
    {"synchroniser": ParameterServer(server="b")},
    {"synchroniser": ParameterServer(server="b", update="worker")},
    {"synchroniser": ParameterServer(server="b", staleness=1)},
    {"synchroniser": Sharded()},
    {"synchroniser": SufficientFactors()},
    {"synchroniser": Periodic(every=2)},
    {"synchroniser": Periodic(every=4)},
    {"synchroniser": Periodic(every=4, outer=OUTER)},
    {"codec": Cast()},
    {"codec": Cast(error_feedback=True)},
    {"codec": Int8()},
    {"codec": Int8(block=64)},
    {"lane": 1},
    {"lane": 1, "priority": 1},
]


def test_ids_of_different_strategies_differ(
    model: ModelSpec, cluster: ClusterSpec, make_strategy: MakeStrategy
) -> None:
    strategies = [make_strategy(Message(parts=("fc.weight",), **change)) for change in ({}, *CHANGES)]
    strategies.append(make_strategy(Message(parts=("fc.weight", "fc.bias"))))
    overlap: Overlap = "forward"
    strategies.append(make_strategy(overlap=overlap))
    for sizes in ((8, 8), (7, 9), (9, 7)):
        cut = {"fc.weight": Partition(sizes=sizes)}
        strategies.append(make_strategy(*[Message(parts=(part,)) for part in BOTH], partitions=cut))
    across = {"fc.weight": Partition(axis=1, sizes=(4, 4))}
    strategies.append(make_strategy(*[Message(parts=(part,)) for part in BOTH], partitions=across))
    assert all(legality.problems(strategy, model, cluster) == [] for strategy in strategies)
    ids = [strategy_id(strategy, model, cluster) for strategy in strategies]
    assert len(set(ids)) == len(ids)


def test_no_momentum_is_none_and_any_other_is_another_strategy(
    model: ModelSpec, cluster: ClusterSpec, make_strategy: MakeStrategy
) -> None:
    plain, written, other = (
        strategy_id(make_strategy(Message(parts=("fc.weight",), codec=codec)), model, cluster)
        for codec in (TopK(ratio=0.5), TopK(ratio=0.5, momentum=-0.0), TopK(ratio=0.5, momentum=0.9))
    )
    assert plain == written
    assert plain != other
