"""A graph task as a task: what `autosync profile` and `autosync tune` take."""

from pathlib import Path

import pytest
import torch

from autosync.graphs.graph_task import GraphTask
from autosync.graphs.load import load_graph_task
from autosync.graphs.policy import BatchingPolicy
from autosync.specs.profile.run import profile
from autosync.specs.task_file import load_task

EXAMPLE = str(Path(__file__).parents[2] / "examples/graphs/tree_lstm.py")


@pytest.fixture(scope="module")
def graphs() -> GraphTask:
    return load_graph_task(EXAMPLE)


def _sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def test_ranks_draw_their_own_examples_and_none_twice(graphs: GraphTask) -> None:
    task = graphs.task(_sgd)
    first, again, other = [task.batch(torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert len(first) == len({id(one) for one in first}) == graphs.batch_size
    assert [id(one) for one in first] == [id(one) for one in again] != [id(one) for one in other]


def test_a_batch_may_be_larger_than_the_data(graphs: GraphTask) -> None:
    few = GraphTask(model=graphs.model, graphs=graphs.graphs[:3], loss=graphs.loss, batch_size=8)
    assert len(few.task(_sgd).batch(torch.Generator())) == 8


def test_each_model_is_a_copy_with_the_policy(graphs: GraphTask) -> None:
    graphs.model.policy = BatchingPolicy(order="agenda", lazy_weights=True)
    task = graphs.task(_sgd)
    model = task.model()
    assert model.policy == graphs.model.policy
    batch = task.batch(torch.Generator())
    assert torch.equal(task.loss(model, batch), graphs.loss(graphs.model(batch), batch))
    task.optimizer(model.parameters()).param_groups[0]["params"][0].data.zero_()
    assert next(graphs.model.parameters()).any()


def test_a_profile_has_the_parameters_of_the_model(graphs: GraphTask) -> None:
    small = GraphTask(model=graphs.model, graphs=graphs.graphs, loss=graphs.loss, batch_size=2)
    found = profile(small.task(_sgd))
    assert {one.name for one in found.variables} == {name for name, _ in graphs.model.named_parameters()}


def test_the_example_has_a_task() -> None:
    assert load_task(EXAMPLE).batch_size == 64
