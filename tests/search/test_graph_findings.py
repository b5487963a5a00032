"""What a verdict says of the batching of graphs."""

from dataclasses import replace

import pytest

from autosync.search.graph_findings import graph_findings
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.graph_batching import DealingTimes, GraphBatching, GraphProfile, PolicySeconds
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.presets import build_preset

GRAPHS = GraphProfile(
    vertices=(1, 30, 60, 80),
    depths=(1, 8, 12, 15),
    policies=(PolicySeconds(order="depth", seconds=0.03), PolicySeconds(order="agenda", seconds=0.02)),
    dealings=(DealingTimes(num_workers=2, by_count=1.25, by_cost=0.98),),
)


def _cluster(num_nodes: int) -> ClusterSpec:
    nodes = tuple(Node(name=f"n{i}", host=f"n{i}", bandwidth_out=1e9, bandwidth_in=1e9) for i in range(num_nodes))
    return ClusterSpec(name="test", nodes=nodes)


@pytest.fixture
def model() -> ModelSpec:
    return replace(load_model("resnet20"), graphs=GRAPHS)


def test_the_winners_policy_and_both_deals_are_told(model: ModelSpec) -> None:
    cluster = _cluster(2)
    batching = GraphBatching(order="agenda", dealing="cost")
    found = graph_findings(replace(build_preset("ddp", model, cluster), batching=batching), model, cluster)
    assert found is not None
    assert found["batching"] == "vertices by agenda, examples dealt by cost"
    assert found["policy_times_as_fast"] == pytest.approx(1.5)
    assert found["lost_by_count"] == pytest.approx(0.2)
    assert found["in_words"] == (
        "by the profile, its policy is 1.50 times as fast as the model's own; the slowest of 2 ranks takes 1.25 times "
        "as long as a mean batch if examples are dealt by count, and 0.98 times by cost"
    )


def test_stock_ddp_has_the_models_own(model: ModelSpec) -> None:
    found = graph_findings(None, model, _cluster(2))
    assert found is not None
    assert found["batching"] == "vertices by depth, examples dealt by count"
    assert found["policy_times_as_fast"] == 1
    assert str(found["in_words"]).startswith("its policy is the model's own; the slowest of 2 ranks")


def test_why_nothing_is_dealt_by_cost(model: ModelSpec) -> None:
    undealt = replace(model, graphs=replace(GRAPHS, dealings=(), undealt="the loss is no mean"))
    found = graph_findings(None, undealt, _cluster(2))
    assert found is not None
    assert found["slowest_by_cost"] is None
    assert str(found["in_words"]).endswith("examples cannot be dealt by cost: the loss is no mean")


def test_other_models_and_one_rank(model: ModelSpec) -> None:
    assert graph_findings(None, replace(model, graphs=None), _cluster(2)) is None
    alone = graph_findings(None, model, _cluster(1))
    assert alone is not None
    assert "ranks" not in str(alone["in_words"])
