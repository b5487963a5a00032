"""What is told of an optimizer holds when it is tried: updates in parts, sparse gradients, state."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

from autosync import Task
from autosync.specs.model import OptimizerSpec
from autosync.specs.profile.optimizer import ELEMENTWISE, probe_optimizer

Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class OwnSGD(torch.optim.SGD):
    """Nobody knows what a user's own class does to an element."""


def make(name: str, **settings: Any) -> Make:
    known = {"OwnSGD": OwnSGD}.get(name) or getattr(torch.optim, name)
    return lambda parameters: known(parameters, lr=0.1, **settings)


def spec_of(optimizer: Make, *, sparse: bool = False) -> OptimizerSpec:
    task = Task(model=lambda: nn.Linear(1, 1), batch=lambda g: None, loss=lambda m, b: m(b), optimizer=optimizer)
    return probe_optimizer(task, sparse=sparse)


@pytest.mark.parametrize(
    ("optimizer", "elementwise", "sparse", "state_slots"),
    [
        (make("SGD"), True, True, 0),
        (make("SGD", momentum=0.9), True, False, 1),
        (make("SGD", weight_decay=0.1), True, False, 0),
        (make("Adam"), True, False, 2),
        (make("Adam", amsgrad=True), True, False, 3),
        (make("AdamW"), True, False, 2),
        (make("Adagrad"), True, True, 1),
        (make("Adagrad", weight_decay=0.1), True, False, 1),
        (make("RMSprop", momentum=0.9, centered=True), True, False, 3),
        (make("ASGD"), True, False, 1),
        (make("Adafactor"), False, False, 0),
        (make("OwnSGD"), False, False, 0),
    ],
)
def test_facts(optimizer: Make, elementwise: bool, sparse: bool, state_slots: int) -> None:
    spec = spec_of(optimizer)
    assert (spec.elementwise, spec.sparse, spec.state_slots) == (elementwise, sparse, state_slots)


def test_an_optimizer_of_sparse_gradients_alone() -> None:
    spec = spec_of(lambda parameters: torch.optim.SparseAdam(list(parameters), lr=0.1), sparse=True)
    assert (spec.name, spec.elementwise, spec.sparse, spec.state_slots) == ("SparseAdam", True, True, 2)


@pytest.mark.parametrize("name", sorted(ELEMENTWISE - {"SparseAdam"}))
def test_elementwise_means_that_parts_may_be_updated_apart(name: str) -> None:
    torch.manual_seed(0)
    start = torch.randn(6, 4, dtype=torch.float64)
    whole = nn.Parameter(start.clone())
    parts = [nn.Parameter(part.clone()) for part in start.split(2)]
    optimizers = [make(name)([whole]), *(make(name)([part]) for part in parts)]
    for _ in range(5):
        gradient = torch.randn(6, 4, dtype=torch.float64)
        whole.grad = gradient.clone()
        for part, share in zip(parts, gradient.split(2), strict=True):
            part.grad = share.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert torch.allclose(torch.cat([part.detach() for part in parts]), whole.detach(), rtol=1e-12, atol=0)
    assert not torch.equal(whole.detach(), start)


def test_elementwise_is_not_said_of_those_that_look_at_the_whole() -> None:
    torch.manual_seed(0)
    start, gradient = torch.randn(6, 4), torch.randn(6, 4)
    whole, part = nn.Parameter(start.clone()), nn.Parameter(start[:2].clone())
    whole.grad, part.grad = gradient.clone(), copy.copy(gradient[:2])
    for parameter in (whole, part):
        torch.optim.Adafactor([parameter], lr=0.1).step()
    assert not torch.allclose(whole.detach()[:2], part.detach(), rtol=1e-3)


def test_what_computes_losses_itself_is_profiled_too() -> None:
    """LBFGS needs a closure; it updates all variables together."""

    def make_lbfgs(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(parameters, max_iter=2)

    found = spec_of(make_lbfgs)
    assert (found.elementwise, found.per_variable, found.updates_apart) == (False, False, False)
