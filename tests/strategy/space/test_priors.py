"""What the priors promise: every value of every aspect occurs, and patterns that work are likely."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec, OptimizerSpec, Timeline, Variable
from autosync.strategy.legality import problems
from autosync.strategy.representation import Strategy, all_parts
from autosync.strategy.space import Limits, Space
from autosync.strategy.space.cutting import weighted_sizes
from autosync.strategy.space.drafts import DraftPiece
from autosync.strategy.space.limits import ALL_CODECS
from autosync.strategy.space.merging import Merging
from autosync.strategy.space.mutation import CHANGE_WEIGHTS
from autosync.strategy.space.scheduling import use_order
from autosync.strategy.synchronisers.base import TOPOLOGIES

NUM_DRAWS = 600


@pytest.fixture(scope="module")
def space() -> Space:
    """A transformer's worth of shapes on four nodes of two ranks, one of them four times as fast, and a server."""
    variables = [
        Variable(
            name="table",
            shape=(20000, 256),
            kind="embedding",
            touched_rows=400.0,
            max_touched_rows=512,
            use=0,
            ready=24,
        )
    ]
    for layer in range(12):
        use = 1 + 2 * layer
        weight = Variable(
            name=f"fc{layer}.weight",
            shape=(1024, 512),
            kind="linear",
            factor_rows=64,
            use=use,
            ready=24 - use,
        )
        variables += [weight, Variable(name=f"fc{layer}.bias", shape=(1024,), use=use + 1, ready=23 - use)]
    model = ModelSpec(
        name="wide",
        optimizer=OptimizerSpec(name="SGD", sparse=True),
        variables=tuple(variables),
        timeline=Timeline(device="none", source="computed", forward=(), backward=()),
    )
    rates = {"a": 4e8, "b": 1e8, "c": 1e8, "d": 1e8}
    nodes = [
        Node(name=name, host=name, devices=2, bandwidth_out=rate, bandwidth_in=rate) for name, rate in rates.items()
    ]
    nodes.append(Node(name="s", host="s", role="server", devices=0, bandwidth_out=1e8, bandwidth_in=1e8))
    cluster = ClusterSpec(name="uneven", nodes=tuple(nodes))
    return Space(model=model, cluster=cluster, limits=Limits(allow=("lossy", "stale")))


@pytest.fixture(scope="module")
def drawn(space: Space) -> list[Strategy]:
    rng = random.Random(0)
    return [space.sample(rng) for _ in range(NUM_DRAWS)]


def test_every_value_of_every_aspect_occurs(space: Space, drawn: list[Strategy]) -> None:
    seen: Counter[object] = Counter()
    for strategy in drawn:
        seen[strategy.overlap] += 1
        for partition in strategy.partitions.values():
            seen["axis", partition.axis] += 1
            seen["uneven", max(partition.sizes) - min(partition.sizes) > 1] += 1
        for message in strategy.messages:
            synchroniser = message.synchroniser
            for name in ("topology", "hierarchical", "update", "local_proxy", "sparse", "staleness", "every", "server"):
                if hasattr(synchroniser, name):
                    seen[synchroniser.kind, name, getattr(synchroniser, name)] += 1
            seen["codec", message.codec] += 1
            seen["slice", message.slice_bytes] += 1
            seen["lane", message.lane] += 1
            seen["several priorities", message.priority > 0] += 1
    limits = space.limits
    wanted: list[object] = [
        "backward",
        "forward",
        *(("axis", axis) for axis in (0, 1)),
        *(("uneven", value) for value in (False, True)),
        *(("codec", codec) for codec in (None, *ALL_CODECS)),
        # The largest message is the whole model, 46 MB: every slice size cuts something.
        *(("slice", size) for size in (None, *limits.slice_bytes)),
        *(("lane", lane) for lane in range(limits.max_lanes)),
        *(("several priorities", value) for value in (False, True)),
        *(("all_reduce", "topology", value) for value in TOPOLOGIES),
        *(("all_reduce", "hierarchical", value) for value in (False, True)),
        *(("periodic", "topology", value) for value in TOPOLOGIES),
        *(("periodic", "every", value) for value in limits.periods),
        *(("sharded", "topology", value) for value in ("native", "ring", "halving_doubling")),
        *(("sparse_gather", "topology", value) for value in ("native", "ring")),
        *(("sufficient_factors", "topology", value) for value in ("native", "ring")),
        *(("parameter_server", "server", node.name) for node in space.cluster.nodes),
        *(("parameter_server", "update", value) for value in ("server", "worker")),
        *(("parameter_server", "local_proxy", value) for value in (False, True)),
        *(("parameter_server", "sparse", value) for value in (False, True)),
        *(("parameter_server", "staleness", value) for value in (0, *limits.staleness)),
    ]
    assert [value for value in wanted if not seen[value]] == []


def test_draws_differ(space: Space, drawn: list[Strategy]) -> None:
    assert len({strategy.messages for strategy in drawn}) > 0.95 * NUM_DRAWS
    sizes = [len(strategy.messages) for strategy in drawn]
    assert sum(size <= 3 for size in sizes) > 0.05 * NUM_DRAWS
    assert sum(size >= 30 for size in sizes) > 0.05 * NUM_DRAWS


def test_large_variables_are_cut_more_often(drawn: list[Strategy]) -> None:
    cuts = Counter(name.partition(".")[2] or name for strategy in drawn for name in strategy.partitions)
    assert cuts["table"] > 1.2 * cuts["weight"] / 12
    assert cuts["weight"] > 10 * cuts["bias"]


def test_embeddings_mostly_travel_as_rows(drawn: list[Strategy]) -> None:
    homes = [m for strategy in drawn for m in strategy.messages if any(p.startswith("table") for p in m.parts)]
    as_rows = [m for m in homes if m.synchroniser.kind == "sparse_gather" or getattr(m.synchroniser, "sparse", False)]
    assert len(as_rows) > 0.6 * len(homes)


def test_fast_nodes_serve_more(space: Space, drawn: list[Strategy]) -> None:
    load: Counter[str] = Counter()
    for strategy in drawn:
        parts = all_parts(strategy, space.model)
        for message in strategy.messages:
            server = getattr(message.synchroniser, "server", None)
            if server is not None and not message.synchroniser.sparse:
                load[server] += sum(parts[name].num_bytes for name in message.parts)
    # Drawn without regard to rates it would be one in five.
    assert load["a"] > 0.35 * load.total()


def test_each_change_applies_somewhere(space: Space, drawn: list[Strategy]) -> None:
    rng = random.Random(1)
    room = space._mutator._room
    applied: Counter[str] = Counter()
    for strategy in drawn[:100]:
        for change in CHANGE_WEIGHTS:
            changed = change(room, strategy, rng)
            if changed is not None and changed != strategy:
                applied[change.__name__] += 1
                assert problems(changed, space.model, space.cluster) == []
    assert set(applied) == {change.__name__ for change in CHANGE_WEIGHTS}


# What the names of changes promise: the aspects that may differ afterwards.
TOUCHED = {
    "change_kind": {"synchroniser", "codec", "slice_bytes"},
    "change_details": {"synchroniser"},
    "change_server": {"synchroniser"},
    "change_codec": {"codec", "slice_bytes"},
    "change_slices": {"slice_bytes"},
    "change_priority": {"priority"},
    "change_lane": {"lane"},
}
ASPECTS = ("synchroniser", "codec", "slice_bytes", "priority", "lane")


def test_a_change_of_a_message_changes_one_message_in_one_aspect(space: Space, drawn: list[Strategy]) -> None:
    rng = random.Random(2)
    for change in CHANGE_WEIGHTS:
        if change.__name__ not in TOUCHED:
            continue
        for before in drawn[:100]:
            after = change(space._mutator._room, before, rng)
            if after is None:
                continue
            assert (after.overlap, after.partitions) == (before.overlap, before.partitions)
            pairs = [(b, a) for b, a in zip(before.messages, after.messages, strict=True) if b != a]
            assert len(pairs) == 1
            old, new = pairs[0]
            assert old.parts == new.parts
            differing = {name for name in ASPECTS if getattr(old, name) != getattr(new, name)}
            assert differing <= TOUCHED[change.__name__]


def test_a_change_of_a_cut_changes_one_variable(space: Space, drawn: list[Strategy]) -> None:
    rng = random.Random(3)
    (change,) = [change for change in CHANGE_WEIGHTS if change.__name__ == "change_cut"]
    for before in drawn[:100]:
        after = change(space._mutator._room, before, rng)
        if after is None:
            continue
        names = before.partitions.keys() | after.partitions.keys()
        (name,) = [n for n in names if before.partitions.get(n) != after.partitions.get(n)]

        def others(strategy: Strategy, name: str = name) -> dict[str, object]:
            return {
                part: (m.synchroniser, m.codec, m.slice_bytes, m.priority, m.lane)
                for m in strategy.messages
                for part in m.parts
                if part.partition("[")[0] != name
            }

        assert others(before) == others(after)


def _pieces(*sizes: float) -> list[DraftPiece]:
    return [DraftPiece(str(index), size, index, index) for index, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "exponent", "groups"),
    [
        ((1, 1, 1, 1), 0.5, [["0", "1"], ["2", "3"]]),
        ((8, 1, 1, 8), 0.5, [["0", "1"], ["2", "3"]]),
        ((1, 1, 1, 9), 0.5, [["0", "1", "2"], ["3"]]),
        ((1, 2, 3), 0.0, [["0", "1", "2"]]),
        ((1, 1, 1), 1.0, [["0"], ["1"], ["2"]]),
        ((0, 0), 0.0, [["0", "1"]]),
    ],
)
def test_equal_bytes(sizes: tuple[float, ...], exponent: float, groups: list[list[str]]) -> None:
    found = Merging("equal_bytes", exponent).merge(random.Random(0), _pieces(*sizes))
    assert [[piece.name for piece in group] for group in found] == groups


@pytest.mark.parametrize("style", ["alone", "equal_bytes", "random_bounds", "scattered"])
def test_merging_loses_nothing(style: str) -> None:
    rng = random.Random(0)
    for count in range(1, 20):
        pieces = _pieces(*(rng.uniform(0, 9) for _ in range(count)))
        groups = Merging(style, rng.random()).merge(rng, pieces)
        assert all(groups)
        assert sorted(int(piece.name) for group in groups for piece in group) == list(range(count))


@pytest.mark.parametrize(
    ("size", "weights", "sizes"),
    [(10, [1, 1], (5, 5)), (10, [3, 1], (7, 3)), (3, [100, 1, 1], (1, 1, 1)), (12, [4, 1, 1], (7, 3, 2))],
)
def test_weighted_sizes(size: int, weights: list[float], sizes: tuple[int, ...]) -> None:
    assert weighted_sizes(size, weights) == sizes


def test_priorities_follow_the_order_of_use() -> None:
    assert use_order([30, 10, 20, 10], 9) == [2, 0, 1, 0]
    assert use_order([5, 4, 3, 2, 1, 0], 2) == [1, 1, 1, 0, 0, 0]
    assert use_order([3, 3], 1) == [0, 0]
