"""Models of vertex functions: what they refuse, and how they behave as modules."""

import gc
import weakref
from typing import Any

import pytest
import torch

from autosync.errors import InputError
from autosync.graphs.families import sequence, tree
from autosync.graphs.input_graph import InputGraph
from autosync.graphs.policy import BatchingPolicy
from autosync.graphs.state_store import StateStore
from autosync.graphs.vertex_function import VertexFunction
from autosync.graphs.vertex_model import VertexModel

LAZY = BatchingPolicy(lazy_weights=True)
POLICIES = [BatchingPolicy(order="naive"), BatchingPolicy(), LAZY]


class Cell(VertexFunction):
    """A recurrent cell of width 3."""

    def __init__(self) -> None:
        super().__init__()
        self.across = torch.nn.Linear(3, 3)

    def forward(self, pulled: torch.Tensor, children: torch.Tensor) -> torch.Tensor:
        return (pulled + self.across(children.sum(dim=1))).tanh()


def model(**changes: Any) -> VertexModel:
    torch.manual_seed(0)
    made = VertexModel(Cell(), state_width=3, policy=LAZY)
    for name, change in changes.items():
        setattr(next(iter(made.functions.values())), name, change)
    return made


def graphs(*lengths: int) -> list[InputGraph]:
    return [sequence(torch.ones(length, 3)) for length in lengths or (3, 1, 4)]


@pytest.mark.parametrize("policy", POLICIES)
def test_gradients_reach_inputs_and_can_be_taken_twice(policy: BatchingPolicy) -> None:
    cell = model()
    cell.policy = policy
    inputs = torch.ones(4, 3, requires_grad=True)
    rows = cell([sequence(inputs)]).sum()
    rows.backward(retain_graph=True)
    assert inputs.grad is not None
    first = inputs.grad.clone(), [one.grad.clone() for one in cell.parameters() if one.grad is not None]
    rows.backward()
    assert torch.allclose(inputs.grad, 2 * first[0])
    assert all(torch.allclose(one.grad, 2 * old) for one, old in zip(cell.parameters(), first[1], strict=True))


def test_gradients_of_inputs_alone_leave_nothing_behind_for_weights() -> None:
    cell, inputs = model(), torch.ones(4, 3, requires_grad=True)
    rows = cell([sequence(inputs)]).sum()
    torch.autograd.grad(rows, inputs, retain_graph=True)
    rows.backward()
    lazy = [one.grad for one in cell.parameters()]
    cell.policy = BatchingPolicy()
    cell.zero_grad()
    cell([sequence(inputs)]).sum().backward()
    assert all(torch.allclose(one, other.grad) for one, other in zip(lazy, cell.parameters(), strict=True))


def test_a_parameter_gets_its_gradient_once_per_step() -> None:
    """Distributed training counts on one hook for each parameter."""
    cell, calls = model(), []
    for parameter in cell.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _parameter: calls.append(1))
    cell(graphs()).sum().backward()
    assert len(calls) == 2


def test_memory_of_a_step_is_freed_without_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    stores = []

    def noted(store: StateStore, num_rows: int) -> None:
        plain(store, num_rows)
        stores.append(weakref.ref(store))

    plain = StateStore.__init__
    monkeypatch.setattr(StateStore, "__init__", noted)
    gc.disable()
    try:
        cell = model()
        cell(graphs()).sum().backward()
        rows = cell(graphs())
        del rows
        assert [store() for store in stores] == [None, None]
    finally:
        gc.enable()


def test_without_gradients_nothing_is_kept() -> None:
    cell = model()
    with torch.no_grad():
        assert not cell(graphs()).requires_grad
    assert torch.allclose(cell(graphs()), cell(graphs()).detach())


def test_a_function_may_change_its_children_in_place() -> None:
    def forward(pulled: torch.Tensor, children: torch.Tensor) -> torch.Tensor:
        return pulled + children.mul_(2).sum(dim=1)

    cell = model(forward=forward)
    batched = cell(graphs())
    cell.policy = BatchingPolicy(order="naive")
    assert torch.equal(cell(graphs()), batched)


def test_no_outputs_are_no_rows() -> None:
    graph = InputGraph(children=[[]], inputs=torch.ones(1, 3), outputs=[])
    assert model()([graph]).shape == (0, 3)
    cell = model()
    cell.policy = BatchingPolicy(order="naive")
    assert cell([graph]).shape == (0, 3)


def test_lower_precision_by_autocast_stays_close() -> None:
    cell = model()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rows = cell(graphs())
    rows.float().sum().backward()
    assert torch.allclose(rows.float(), cell(graphs()), atol=0.05)


def test_a_model_is_saved_and_loaded_by_kind() -> None:
    first = VertexModel({"update": Cell(), "leaf": Cell()}, state_width=3)
    second = VertexModel({"leaf": Cell(), "update": Cell()}, state_width=3)
    second.load_state_dict(first.state_dict())
    assert "functions.update_vertex.across.weight" in first.state_dict()
    graph = tree([-1, 0], torch.ones(2, 3), inner="update")
    assert torch.equal(first([graph]), second([graph]))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: VertexModel({}, state_width=3), "no vertex functions"),
        (lambda: VertexModel(Cell(), state_width=0), "width 0"),
        (lambda: VertexModel({"a.b": Cell()}, state_width=3), "'a.b' is no name of a kind"),
        (
            lambda: VertexModel({"a": torch.nn.Linear(1, 1)}, state_width=3),
            "functions.a: the function is of type Linear",
        ),  # type: ignore[dict-item]
        (lambda: model()([]), "the batch has no graphs"),
        (lambda: model()([*graphs(), sequence(torch.ones(2, 4))]), "graphs[3].inputs: rows are (4,)"),
        (lambda: model(pull=lambda inputs: inputs[1:])(graphs(3)), "pull() of vertex returned 2 rows for 3 vertices"),
        (
            lambda: model(forward=lambda _pulled, children: children)(graphs(3)),
            "forward() of vertex returned (1, 0, 3)",
        ),
        (lambda: model(forward=lambda _pulled, _children: None)(graphs(3)), "returned NoneType for 1 vertices"),
    ],
)
def test_mistakes_are_refused(make: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert words in str(caught.value)


def test_kinds_that_do_not_fit_together_are_refused() -> None:
    def mixed(**changes: Any) -> VertexModel:
        second = Cell()
        for name, change in changes.items():
            setattr(second, name, change)
        return VertexModel({"leaf": Cell(), "inner": second}, state_width=3)

    graph = tree([-1, 0], torch.ones(2, 3))
    with pytest.raises(InputError, match="push rows of different shapes"):
        mixed(push=lambda states: states[:, :1])([graph])
    with pytest.raises(InputError, match="states of one dtype"):
        mixed(forward=lambda pulled, _children: pulled.double())([graph])


def test_a_function_without_forward_says_so() -> None:
    with pytest.raises(NotImplementedError, match="VertexFunction has no forward"):
        VertexModel(VertexFunction(), state_width=3)(graphs())
