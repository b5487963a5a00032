"""What a profile knows of a model's graphs, and what it makes of the pace of a step."""

from dataclasses import replace

import pytest

from autosync.plan.bound import bound
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.compute_pace import compute_seconds, least_passes, paces_of
from autosync.specs.graph_batching import DealingTimes, GraphBatching, GraphProfile, PolicySeconds, in_words
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import dump_model, load_model, save_model

LAZY_AGENDA = GraphBatching(order="agenda", lazy_weights=True, dealing="cost")


@pytest.fixture
def graphs() -> GraphProfile:
    return GraphProfile(
        vertices=(1, 30, 60, 80),
        depths=(1, 8, 12, 15),
        policies=(
            PolicySeconds(order="depth", seconds=0.03),
            PolicySeconds(order="agenda", lazy_weights=True, seconds=0.015),
        ),
        vertex_seconds=1e-5,
        level_seconds=1e-3,
        dealings=(
            DealingTimes(num_workers=2, by_count=1.25, by_cost=1.02),
            DealingTimes(num_workers=8, by_count=1.65, by_cost=0.98),
        ),
    )


def _cluster(num_nodes: int) -> ClusterSpec:
    nodes = tuple(Node(name=f"n{i}", host=f"n{i}", bandwidth_out=1e9, bandwidth_in=1e9) for i in range(num_nodes))
    return ClusterSpec(name="test", nodes=nodes)


@pytest.fixture
def model(graphs: GraphProfile) -> ModelSpec:
    return replace(load_model("resnet20"), graphs=graphs)


def test_a_factor_is_interpolated_between_numbers_of_workers(graphs: GraphProfile) -> None:
    found = [graphs.dealing_factor("count", number) for number in (1, 2, 4, 8, 64)]
    assert found == pytest.approx([1, 1.25, 1.45, 1.65, 1.65])
    assert graphs.dealing_factor("cost", 4) == pytest.approx(1.0)
    assert not replace(graphs, dealings=()).knows_dealing
    assert replace(graphs, dealings=()).dealing_factor("count", 4) == 1


def test_a_step_takes_as_long_as_its_policy_and_its_slowest_rank(graphs: GraphProfile) -> None:
    assert graphs.own == GraphBatching(order="depth")
    assert graphs.factor(None, 1) == 1
    assert graphs.factor(None, 2) == 1.25
    assert graphs.factor(LAZY_AGENDA, 2) == pytest.approx(0.5 * 1.02)
    assert graphs.seconds_of(GraphBatching(order="searched")) is None


def test_all_ranks_have_the_pace_of_the_slowest(model: ModelSpec) -> None:
    cluster = _cluster(2)
    assert {pace.passes for pace in paces_of(model, cluster)} == {1.25}
    assert {pace.update for pace in paces_of(model, cluster)} == {1}
    assert compute_seconds(model, cluster, (), LAZY_AGENDA) < compute_seconds(model, cluster)
    assert least_passes(model, cluster) == 0.5


def test_a_rank_need_not_be_slower_than_one_alone(model: ModelSpec) -> None:
    """With eight workers whose examples are dealt by cost, the slowest takes 0.98 of the time of one alone."""
    cluster = _cluster(8)
    assert least_passes(model, cluster) == pytest.approx(0.5 * 0.98)
    assert least_passes(model, cluster) == pytest.approx(paces_of(model, cluster, (), LAZY_AGENDA)[0].passes)
    fast = tuple(replace(node, compute=2.0) for node in cluster.nodes)
    server = Node(name="s", host="s", role="server", devices=0, bandwidth_out=1e9, bandwidth_in=1e9)
    assert least_passes(model, replace(cluster, nodes=(*fast, server))) == pytest.approx(0.25 * 0.98)


def test_the_bound_goes_by_the_fastest_batching(model: ModelSpec) -> None:
    """Its terms of single variables too: with endless links, none of them is longer than the compute of a step."""
    endless = tuple(replace(node, bandwidth_out=1e15, bandwidth_in=1e15) for node in _cluster(2).nodes)
    limit = bound(model, replace(_cluster(2), nodes=endless))
    assert limit.seconds == pytest.approx(limit.terms[0].seconds, rel=1e-3)


def test_a_file_keeps_it(model: ModelSpec, tmp_path) -> None:
    path = tmp_path / "model.yaml"
    save_model(model, path)
    assert load_model(str(path)) == model
    assert dump_model(replace(model, graphs=None)).get("graphs") is None


def test_plans_do_not_depend_on_it(model: ModelSpec) -> None:
    assert model.fingerprint() == replace(model, graphs=None).fingerprint()


def test_words() -> None:
    assert in_words(GraphBatching()) == "vertices by depth, examples dealt by count"
    assert in_words(LAZY_AGENDA) == "vertices by agenda with lazy weights, examples dealt by cost"
    assert in_words(GraphBatching(order="naive")) == "vertices one after the other, examples dealt by count"
    assert in_words(GraphBatching(order="searched")) == "vertices by a searched order, examples dealt by count"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GraphBatching(order="naive", lazy_weights=True), "nothing to add up"),
        (lambda: PolicySeconds(order="depth", seconds=0.0), "no duration"),
        (lambda: DealingTimes(num_workers=1, by_count=0.0, by_cost=0.0), "2 or more"),
        (lambda: DealingTimes(num_workers=2, by_count=1.0, by_cost=0.0), "no factors"),
        (lambda: GraphProfile(vertices=(), depths=(), policies=()), "without policies"),
        (
            lambda: GraphProfile(vertices=(), depths=(), policies=(PolicySeconds(order="depth", seconds=1.0),) * 2),
            "two policies are the same",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_dealings_are_in_the_order_of_workers(graphs: GraphProfile) -> None:
    with pytest.raises(ValueError, match="ascending"):
        replace(graphs, dealings=graphs.dealings[::-1])
