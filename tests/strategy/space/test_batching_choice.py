"""The batching of graphs as an aspect of strategies: drawn, changed, crossed, canonical, and legal only where it is."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from autosync.simulators.analytical.simulator import AnalyticalSimulator
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.graph_batching import DealingTimes, GraphBatching, GraphProfile, PolicySeconds
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy import legality
from autosync.strategy.canonical import canonical
from autosync.strategy.describe import in_words
from autosync.strategy.diff import diff
from autosync.strategy.files import dump_strategy, load_strategy, save_strategy
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Strategy
from autosync.strategy.space import Limits, Space
from autosync.strategy.space.batching_choice import batching_choice

GRAPHS = GraphProfile(
    vertices=(1, 30, 60, 80),
    depths=(1, 8, 12, 15),
    policies=(
        PolicySeconds(order="depth", seconds=0.02),
        PolicySeconds(order="depth", lazy_weights=True, seconds=0.021),
        PolicySeconds(order="agenda", seconds=0.01),
        PolicySeconds(order="naive", seconds=0.4),
    ),
    dealings=(DealingTimes(num_workers=2, by_count=1.4, by_cost=1.01),),
)
BEST = GraphBatching(order="agenda", dealing="cost")


def _cluster(*speeds: float) -> ClusterSpec:
    nodes = tuple(
        Node(name=f"n{i}", host=f"n{i}", bandwidth_out=1e9, bandwidth_in=1e9, compute=speed)
        for i, speed in enumerate(speeds)
    )
    return ClusterSpec(name="test", nodes=nodes)


CLUSTER = _cluster(1, 1)


@pytest.fixture(scope="module")
def model() -> ModelSpec:
    return replace(load_model("resnet20"), graphs=GRAPHS)


@pytest.fixture(scope="module")
def ddp(model: ModelSpec) -> Strategy:
    return build_preset("ddp", model, CLUSTER)


def test_most_draws_are_fast(model: ModelSpec) -> None:
    space, rng = Space(model=model, cluster=CLUSTER), random.Random(1)
    drawn = Counter(space.sample(rng).batching for _ in range(300))
    assert drawn[BEST] > 200
    assert drawn[GraphBatching(order="agenda")] > 20
    assert drawn[GraphBatching(order="naive")] == 0


def test_mutations_change_it_and_children_have_it_of_a_parent(model: ModelSpec, ddp: Strategy) -> None:
    space, rng = Space(model=model, cluster=CLUSTER), random.Random(2)
    changed = [space.mutate(ddp, rng) for _ in range(200)]
    with_batching = [one for one in changed if one.batching is not None]
    assert 10 < len(with_batching) < 60
    assert all(space.contains(one) for one in changed)
    other = replace(ddp, batching=BEST)
    children = [space.crossover(ddp, other, rng).batching for _ in range(40)]
    assert set(children) == {None, BEST}
    assert space.crossover(other, other, rng).batching == BEST


def test_ranks_that_train_alone_get_examples_by_count(model: ModelSpec, ddp: Strategy) -> None:
    space, rng = Space(model=model, cluster=CLUSTER, limits=Limits(allow=("stale",))), random.Random(4)
    averaged, by_cost = build_preset("local_sgd", model, CLUSTER), replace(ddp, batching=BEST)
    (problem,) = legality.problems(replace(averaged, batching=BEST), model, CLUSTER)
    assert str(problem).startswith("messages[0].synchroniser: periodic with examples dealt by cost (each rank trains")
    assert legality.problems(replace(averaged, batching=BEST), model, _cluster(1)) == []
    parents = [averaged, by_cost, *(space.sample(rng) for _ in range(100))]
    found = [space.mutate(one, rng) for one in parents for _ in range(3)]
    found += [space.crossover(averaged, by_cost, rng) for _ in range(40)]
    assert not [problem for one in (*parents, *found) for problem in legality.problems(one, model, CLUSTER)]
    apart = [one for one in found if any(message.synchroniser.trains_apart for message in one.messages)]
    assert GraphBatching(order="agenda") in {one.batching for one in apart}


def test_the_space_is_larger_by_the_batchings(model: ModelSpec) -> None:
    choice = batching_choice(model, CLUSTER, Limits())
    assert choice is not None
    assert len(choice.weights) == 8
    with_them, without = (Space(model=one, cluster=CLUSTER) for one in (model, replace(model, graphs=None)))
    assert with_them.log10_size() == pytest.approx(without.log10_size() + choice.log10_size())


def test_limits_and_other_models_have_none(model: ModelSpec, ddp: Strategy) -> None:
    assert batching_choice(replace(model, graphs=None), CLUSTER, Limits()) is None
    assert batching_choice(model, CLUSTER, Limits(batching=False)) is None
    (problem,) = Space(model=model, cluster=CLUSTER, limits=Limits(batching=False)).problems(
        replace(ddp, batching=BEST)
    )
    assert "vertices by agenda, examples dealt by cost is outside the limits" in str(problem)


def test_shares_are_even(model: ModelSpec) -> None:
    space, rng = Space(model=model, cluster=_cluster(1, 2)), random.Random(3)
    assert not any(space.sample(rng).shares for _ in range(60))


def test_what_the_model_does_by_itself_is_dropped(model: ModelSpec, ddp: Strategy) -> None:
    assert canonical(replace(ddp, batching=GRAPHS.own), model, CLUSTER).batching is None
    assert canonical(replace(ddp, batching=BEST), model, CLUSTER).batching == BEST
    alone = canonical(replace(ddp, batching=BEST), model, _cluster(1))
    assert alone.batching == replace(BEST, dealing="count")


@pytest.mark.parametrize(
    ("changes", "graphs", "message"),
    [
        ({"batching": BEST}, None, "it is for models of vertex functions"),
        ({"batching": GraphBatching(order="searched")}, GRAPHS, "the policy searched"),
        ({"batching": BEST}, replace(GRAPHS, dealings=(), undealt="the loss is no mean"), "the loss is no mean"),
        ({"shares": (1, 63)}, GRAPHS, "examples are dealt by cost instead"),
    ],
)
def test_what_is_not_legal(model: ModelSpec, ddp: Strategy, changes, graphs, message: str) -> None:
    one = replace(model, graphs=graphs, batch_size=32)
    problems = legality.problems(replace(ddp, **changes), one, CLUSTER)
    assert [message in str(problem) for problem in problems] == [True]


def test_files_and_words_have_it(ddp: Strategy, model: ModelSpec, tmp_path) -> None:
    strategy = replace(ddp, batching=BEST)
    save_strategy(tmp_path / "s.yaml", strategy)
    found, _ = load_strategy(tmp_path / "s.yaml")
    assert found == strategy
    assert "batching" not in dump_strategy(ddp)
    assert in_words(strategy, model).endswith("; vertices by agenda, examples dealt by cost")
    (difference,) = diff(ddp, strategy)
    assert str(difference) == "the whole step: batching: the model's own -> order=agenda dealing=cost"


@pytest.mark.parametrize("simulator", [TimelineSimulator, AnalyticalSimulator])
def test_simulators_wait_for_the_slowest_rank_and_know_the_policy(model: ModelSpec, ddp: Strategy, simulator) -> None:
    one = simulator(model, CLUSTER)
    plain, best, lazy = (
        prediction.seconds
        for prediction in one.predict(
            [ddp, replace(ddp, batching=BEST), replace(ddp, batching=GraphBatching(order="depth", lazy_weights=True))]
        )
    )
    without = simulator(replace(model, graphs=None), CLUSTER).predict([ddp])[0].seconds
    assert best < without < plain < lazy
