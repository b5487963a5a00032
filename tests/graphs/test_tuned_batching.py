"""What a profile measures of a graph task."""

import pytest
import torch
from torch.nn import functional

from autosync.graphs.graph_task import GraphTask
from autosync.graphs.input_graph import InputGraph
from autosync.graphs.policy import BatchingPolicy
from autosync.graphs.vertex_function import VertexFunction
from autosync.graphs.vertex_model import VertexModel
from autosync.specs.profile.run import profile
from autosync.specs.task import Task


class Recurrent(VertexFunction):
    """A recurrent step that says something at each vertex."""

    def __init__(self) -> None:
        super().__init__()
        self.step = torch.nn.Linear(1 + 4, 4)
        self.outward = torch.nn.Linear(4, 2)

    def forward(self, pulled, children):
        return self.step(torch.cat([pulled, children.sum(dim=1)], dim=1)).tanh()

    def push(self, states):
        return self.outward(states)


def _chain(size: int) -> InputGraph:
    """A sequence whose vertices are all outputs."""
    children = [[vertex - 1] if vertex else [] for vertex in range(size)]
    return InputGraph(children=children, inputs=torch.randn(size, 1), target=torch.randint(2, (size,)))


def _task(*, weight=None, policy: BatchingPolicy | None = None, mean: bool = True) -> Task:
    torch.manual_seed(5)
    graphs = [_chain(size) for size in range(1, 25)]
    model = VertexModel(Recurrent(), state_width=4)
    if policy is not None:
        model.policy = policy

    def loss(rows: torch.Tensor, batch) -> torch.Tensor:
        each = functional.cross_entropy(rows, torch.cat([graph.target for graph in batch]), reduction="none")
        if mean:
            return each.mean()
        return torch.stack([one.mean() for one in each.split([graph.num_vertices for graph in batch])]).mean()

    return GraphTask(model=model, graphs=graphs, loss=loss, weight=weight, batch_size=8).task(
        lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    )


def _num_vertices(graphs) -> float:
    return sum(graph.num_vertices for graph in graphs)


def test_a_profile_has_the_policies_and_the_deals() -> None:
    model = profile(_task(mean=False), steps=2)
    found = model.graphs
    assert found is not None
    assert [one.policy for one in found.policies][:2] == [("depth", False), ("depth", True)]
    assert found.vertices[0] >= 1
    assert found.vertices[-1] <= 24
    assert found.depths == found.vertices
    assert found.undealt == ""
    assert [one.num_workers for one in found.dealings] == [2, 4, 8, 16, 32]
    assert all(one.by_cost <= one.by_count for one in found.dealings)
    assert not model.weighs


def test_the_models_own_policy_comes_first() -> None:
    found = profile(_task(policy=BatchingPolicy(order="naive")), steps=1).graphs
    assert found is not None
    assert found.own.order == "naive"
    assert found.policies[0].seconds > min(one.seconds for one in found.policies)


def test_a_mean_over_vertices_is_dealt_only_with_its_weight() -> None:
    undeclared = profile(_task(), steps=1).graphs
    assert undeclared is not None
    assert "the loss is no mean over examples" in undeclared.undealt
    assert undeclared.dealings == ()
    declared = profile(_task(weight=_num_vertices), steps=1)
    assert declared.weighs
    assert declared.graphs is not None
    assert declared.graphs.dealings


def test_a_weight_that_is_not_that_of_the_loss_is_noticed() -> None:
    found = profile(_task(weight=lambda graphs: _num_vertices(graphs) ** 2), steps=1).graphs
    assert found is not None
    assert "no mean by the task's weight" in found.undealt


@pytest.mark.parametrize("weight", [None, _num_vertices])
def test_the_part_of_a_rank_has_a_factor_only_without_a_weight(weight) -> None:
    task = _task(weight=weight, mean=weight is not None)
    model = profile(task, steps=1)
    assert model.graphs is not None
    assert task.graphs is not None
    batch = task.batch(torch.Generator().manual_seed(1))
    parts = [task.graphs.deal(batch, model.graphs, rank=rank, num_ranks=3) for rank in range(3)]
    assert sum(len(part.graphs) for part in parts) == len(batch)
    assert ({part.factor for part in parts} == {1.0}) == (weight is not None)
    if weight is not None:
        assert task.weight is not None
        assert sum(task.weight(part) for part in parts) == weight(batch)
