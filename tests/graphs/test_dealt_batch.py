"""A rank's part of a global batch: all parts together train as the whole batch does."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.errors import InputError
from autosync.graphs.dealt_batch import deal_batch, deal_graphs, graphs_of, loss_of
from autosync.graphs.families import sequence
from autosync.graphs.input_graph import InputGraph
from autosync.graphs.vertex_function import VertexFunction
from autosync.graphs.vertex_model import VertexModel
from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.graph_batching import DealingTimes, GraphBatching, GraphProfile, PolicySeconds
from autosync.specs.model_file import load_model
from autosync.strategy.bundle import Bundle, save_bundle
from autosync.strategy.presets import build_preset

PROFILE = GraphProfile(
    vertices=(1, 2, 3, 4),
    depths=(1, 2, 3, 4),
    policies=(PolicySeconds(order="depth", seconds=1.0), PolicySeconds(order="agenda", seconds=0.5)),
    vertex_seconds=1e-5,
    level_seconds=1e-4,
    dealings=(DealingTimes(num_workers=2, by_count=1.2, by_cost=1.1),),
)


class Step(VertexFunction):
    """A recurrent step."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = torch.nn.Linear(1, 4)
        self.across = torch.nn.Linear(4, 4, bias=False)
        self.outward = torch.nn.Linear(4, 1)

    def pull(self, inputs):
        return self.inward(inputs)

    def forward(self, pulled, children):
        return (pulled + self.across(children.sum(dim=1))).tanh()

    def push(self, states):
        return self.outward(states)


def _loss(rows: torch.Tensor, graphs) -> torch.Tensor:
    """The mean over examples of what their last vertices say."""
    assert len(rows) == len(graphs)
    return rows.square().mean()


def _walks(sizes) -> list[InputGraph]:
    generator = torch.Generator().manual_seed(sum(sizes))
    return [sequence(torch.randn(size, 1, generator=generator, dtype=torch.float64)) for size in sizes]


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(1, 12), min_size=6, max_size=20), num_ranks=st.integers(1, 6), levels=st.booleans())
def test_the_mean_of_all_ranks_gradients_is_that_of_the_batch(sizes, num_ranks: int, levels: bool) -> None:
    torch.manual_seed(3)
    model = VertexModel(Step(), state_width=4).double()
    graphs = _walks(sizes)
    profile = PROFILE if levels else replace(PROFILE, vertex_seconds=0.0)
    parts = deal_graphs(graphs, profile, num_ranks=num_ranks)
    assert sorted(id(one) for part in parts for one in graphs_of(part)) == sorted(map(id, graphs))
    for part in parts:
        (loss_of(model, part, _loss) / num_ranks).backward()
    found = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    loss_of(model, graphs, _loss).backward()
    for one, wanted in zip(found, [parameter.grad for parameter in model.parameters()], strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-10, atol=1e-12)


def _bundle(dealing: str | None) -> Bundle:
    nodes = tuple(Node(name=f"n{i}", host=f"n{i}", bandwidth_out=1e9, bandwidth_in=1e9) for i in range(2))
    cluster = ClusterSpec(name="test", nodes=nodes)
    model = replace(load_model("resnet20"), graphs=PROFILE)
    batching = None if dealing is None else GraphBatching(order="agenda", dealing=dealing)
    return bundled(replace(build_preset("ddp", model, cluster), batching=batching), model, cluster)


def test_a_bundle_deals_as_its_strategy_says(tmp_path: Path) -> None:
    graphs = _walks([40, 1, 1, 1, 1, 1, 1, 1])
    save_bundle(tmp_path / "best.yaml", _bundle("cost"))
    by_cost = [deal_batch(graphs, tmp_path / "best.yaml", rank=rank) for rank in range(2)]
    assert sorted(len(part.graphs) for part in by_cost) == [1, 7]
    assert sorted(part.factor for part in by_cost) == [0.25, 1.75]
    for dealing in ("count", None):
        by_count = [deal_batch(graphs, _bundle(dealing), rank=rank) for rank in range(2)]
        assert [len(part.graphs) for part in by_count] == [4, 4]
        assert [part.factor for part in by_count] == [1, 1]


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_of_another_cluster_is_refused(rank: int) -> None:
    with pytest.raises(InputError, match="one of the bundle's 2 workers"):
        deal_batch(_walks([1, 2]), _bundle("cost"), rank=rank)


def test_examples_differ_enough_for_the_test() -> None:
    """The property above says something only if parts have different sizes."""
    sizes = [random.Random(1).randint(1, 12) for _ in range(12)]
    parts = deal_graphs(_walks([*sizes, 40]), PROFILE, num_ranks=3)
    assert len({len(part.graphs) for part in parts}) > 1
