"""A split backward pass gives the gradients of an ordinary one, and those of weights only when they are asked for."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from autosync.runtime.stages.stage_program import StageProgram
from autosync.specs.profile.recorder import structure_of
from autosync.specs.profile.tape import record


class _Twice(nn.Module):
    """Uses one weight twice, and has a bias, a norm, an embedding that is tied to the output, and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.inner = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.frozen = nn.Linear(6, 6, bias=False)
        self.frozen.weight.requires_grad_(requires_grad=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.table(ids)
        hidden = hidden + self.inner(self.norm(self.inner(hidden).tanh()))
        return functional.linear(self.frozen(hidden), self.table.weight)


def _programs(
    model: nn.Module, loss: Callable[[torch.Tensor], torch.Tensor], batch: torch.Tensor
) -> list[StageProgram]:
    tape = record(structure_of(model), model, lambda: loss(batch), batch)
    assert not tape.problem
    end = len(tape.modules)
    return [StageProgram(tape, 0, end, arriving=None, last=True, splits_backward=splits) for splits in (False, True)]


def _taken(model: nn.Module) -> dict[str, torch.Tensor]:
    found = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    for one in model.parameters():
        one.grad = None
    return found


def test_all_gradients_are_those_of_an_ordinary_pass() -> None:
    torch.manual_seed(1)
    model = _Twice()

    def loss(ids: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

    batch = torch.randint(11, (3, 4))
    whole, split = _programs(model, loss, batch)
    whole.backward(whole.forward([batch], {}), {}, scale=0.5)
    wanted = _taken(model)

    came: list[str] = []

    def noting(name: str) -> Callable[[torch.Tensor], None]:
        def note(parameter: torch.Tensor) -> None:
            assert parameter.grad is not None, "a hook is called with a gradient"
            came.append(name)

        return note

    for name, one in model.named_parameters():
        if one.requires_grad:
            one.register_post_accumulate_grad_hook(noting(name))  # type: ignore[no-untyped-call]
    passed = split.forward([batch], {})
    split.backward(passed, {}, scale=0.5)
    assert set(came) == {"norm.weight", "norm.bias", "table.weight"}, "only these come in the backward pass"
    came.clear()
    split.weights(passed.left)
    assert sorted(came) == ["inner.bias", "inner.weight", "table.weight"], "each parameter once"
    found = _taken(model)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_layer_in_another_type_than_its_weight_leaves_nothing(autocast: bool) -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    batch = torch.randn(6, 4, requires_grad=True)
    _, split = _programs(model, lambda inputs: model(inputs).square().mean(), batch)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        passed = split.forward([batch], {})
    split.backward(passed, {}, scale=1.0)
    before = {name for name, one in model.named_parameters() if one.grad is not None}
    split.weights(passed.left)
    after = {name for name, one in model.named_parameters() if one.grad is not None}
    everything: set[Any] = set(dict(model.named_parameters()))
    assert before == (everything if autocast else set())
    assert after == everything
