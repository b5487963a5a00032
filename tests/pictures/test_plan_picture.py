"""Pictures of plans: the content for each way to synchronise, and that any plan can be drawn."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.pictures.captions import heading
from autosync.pictures.glyphs import MAX_LAYERS
from autosync.pictures.groups import groups_of
from autosync.pictures.plan_picture import MAX_RANKS, plan_picture
from autosync.pictures.stages import Holding, holdings
from autosync.pictures.theme import NUM_COLOURS, OTHERS
from autosync.plan.lowering import lower
from autosync.plan.types import Plan
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, OptimizerSpec, Timeline, Variable
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.space import Limits, Space
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from tests.helpers.example_plans import cluster_of, examples
from tests.helpers.random_specs import clusters, models

See = Callable[[str], Any]

HEADINGS = {
    "all_reduce": "all-reduce",
    "hierarchical, equal nodes": "all-reduce, within nodes first",
    "hierarchical, unequal nodes": "all-reduce, within nodes first",
    "int8": "all-gather, encoded: int8 error_feedback",
    "cast": "all-reduce, encoded: cast",
    "server": "parameter servers",
    "server apart": "parameter servers",
    "server, workers update": "parameter servers",
    "server, stale": "parameter servers, 2 steps late",
    "rows": "touched rows to everybody",
    "rows at server": "touched rows through servers",
    "rows at server, stale": "touched rows through servers, 2 steps late",
    "factors": "factors to everybody",
    "sharded": "sharded",
    "sharded, clipped": "sharded",
    "periodic": "own steps, a meeting every 2 steps",
    "periodic, outer": "own steps, a meeting every 2 steps",
}


def draw(plan: Plan, cluster: ClusterSpec) -> str:
    return plan_picture(plan, cluster, title="a strategy", subtitle="a model on a cluster")


def many(number: int, *, server: Callable[[int], str] | None = None) -> Strategy:
    """A message for each of so many variables, all-reduced or at servers."""
    return Strategy(
        messages=tuple(
            Message(
                parts=(f"v{i}",), synchroniser=ParameterServer(server=server(i)) if server else AllReduce(), lane=i % 4
            )
            for i in range(number)
        )
    )


def model_with(*names: str) -> ModelSpec:
    return ModelSpec(
        name="test",
        optimizer=OptimizerSpec(name="SGD", sparse=True),
        variables=tuple(
            Variable(name=name, shape=(100 * (place + 1),), use=place, ready=len(names) - 1 - place)
            for place, name in enumerate(names)
        ),
        timeline=Timeline(device="none", source="computed", forward=(), backward=()),
    )


def plan_of(strategy: Strategy, cluster: ClusterSpec) -> Plan:
    return lower(strategy, model_with(*[part for message in strategy.messages for part in message.parts]), cluster)


@pytest.mark.parametrize("name", HEADINGS)
def test_ways_have_their_names(name: str) -> None:
    found = examples("backward")[name]
    assert HEADINGS[name] in [heading(group)[0] for group in groups_of(found.plan())]


@pytest.mark.parametrize("overlap", ["backward", "forward"])
def test_every_kind_of_plan_can_be_drawn(overlap: Any, see: See) -> None:
    for name, found in examples(overlap).items():
        plan = found.plan()
        seen = see(draw(plan, found.cluster))
        written = " ".join(seen.texts)
        for group in groups_of(plan):
            assert heading(group)[0] in seen.texts, name
            assert f"{group.num_messages} message" in written, name


def test_a_star_has_a_line_for_each_member(see: See) -> None:
    strategy = Strategy(messages=(Message(parts=("v0",), synchroniser=ParameterServer(server="n3")),))
    seen = see(draw(plan_of(strategy, cluster_of(1, 1, 1, 0)), cluster_of(1, 1, 1, 0)))
    lines = [e.attrib["d"] for e in seen.elements if e.attrib.get("class") == "line-0"]
    # To the server and back; nothing goes straight down, for the server has no gradient of its own.
    assert [line.count("C") for line in lines] == [3, 3]
    assert seen.count("rect")["serves"] == 1


def test_a_ring_has_a_station_for_each_member(see: See) -> None:
    plan = plan_of(many(3), cluster_of(1, 1, 1, 1))
    seen = see(draw(plan, cluster_of(1, 1, 1, 1)))
    assert seen.count("rect")["station"] == 4
    assert [seen.count("path")[f"line-{colour}"] for colour in range(4)] == [1, 1, 1, 0]


def test_shards_are_shares_of_bars() -> None:
    plan = examples("backward")["sharded"].plan()
    (group,) = groups_of(plan)
    scattered, update, gathered = group.stages[1], group.stages[3], group.stages[4]
    assert (scattered.what, update.what, gathered.what) == ("reduce_scatter", "update", "all_gather")
    assert holdings(scattered) == {rank: Holding(rank, 3, 1) for rank in range(3)}
    assert holdings(update) == holdings(scattered)
    assert holdings(gathered) == {rank: Holding(0, 1, 1) for rank in range(3)}


def test_what_is_gathered_lies_in_layers() -> None:
    (group,) = [g for g in groups_of(examples("backward")["rows"].plan()) if g.stages[0].what == "rows"]
    assert holdings(group.stages[1]) == {rank: Holding(0, 1, 3) for rank in range(3)}
    assert group.stages[1].share < 1
    assert MAX_LAYERS >= 4


def test_few_messages_have_a_line_each_and_many_are_bundled() -> None:
    cluster = cluster_of(1, 1, 1)
    (few,) = groups_of(plan_of(many(NUM_COLOURS), cluster))
    assert [strand.colour for strand in few.strands] == list(range(NUM_COLOURS))
    (lots,) = groups_of(plan_of(many(160), cluster))
    assert [strand.colour for strand in lots.strands] == [*range(NUM_COLOURS - 1), OTHERS]
    assert lots.strands[-1].num_messages == 160 - NUM_COLOURS + 1
    assert lots.num_messages == 160
    assert lots.num_bytes == sum(400 * (i + 1) for i in range(160))
    (served,) = groups_of(plan_of(many(160, server=lambda i: f"n{i % 3}"), cluster))
    assert [strand.num_messages for strand in served.strands] == [54, 53, 53]


def test_the_largest_messages_are_told_apart() -> None:
    (lots,) = groups_of(plan_of(many(20), cluster_of(1, 1)))
    told = {strand.parts[0] for strand in lots.strands if strand.colour != OTHERS}
    assert told == {f"v{i}" for i in range(20 - NUM_COLOURS + 1, 20)}


def test_a_large_picture_stays_one(see: See) -> None:
    cluster = cluster_of(*[8] * 16)
    text = draw(plan_of(many(160), cluster), cluster)
    seen = see(text)
    assert len(text) < 100_000
    assert f"and {128 - MAX_RANKS} more ranks" in seen.texts
    assert "160 messages" in seen.texts


def test_names_are_only_text(see: See) -> None:
    hostile = "<script>&\"'"
    strategy = Strategy(messages=(Message(parts=(hostile,)),))
    cluster = replace(cluster_of(1, 1), name="a</style>b")
    plan = lower(strategy, model_with(hostile), cluster)
    text = plan_picture(plan, cluster, title=hostile, subtitle=f"{hostile} on {cluster.name}")
    seen = see(text)
    assert "<script" not in text
    assert seen.texts.count(hostile) == 2


def test_a_picture_is_the_same_each_time() -> None:
    for found in examples("forward").values():
        assert draw(found.plan(), found.cluster) == draw(found.plan(), found.cluster)


@settings(deadline=None)
@given(models(), clusters(), st.integers(0, 2**32 - 1))
def test_any_plan_can_be_drawn(see: See, model: ModelSpec, cluster: ClusterSpec, seed: int) -> None:
    limits = Limits(allow=("lossy", "stale"), slice_bytes=(1024, 4096))
    strategy = Space(model=model, cluster=cluster, limits=limits).sample(random.Random(seed))
    plan = lower(strategy, model, cluster)
    see(draw(plan, cluster))
    assert sum(group.num_messages for group in groups_of(plan)) == len(plan.messages)
