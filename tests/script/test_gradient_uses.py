"""What a script does with gradients is noted, and done."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn

from autosync.script.gradient_uses import GradientUses


@pytest.fixture
def parameters() -> list[nn.Parameter]:
    made = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2))]
    for one in made:
        one.grad = torch.full_like(one, 2.0)
    return made


def _zeroes(parameters: list[nn.Parameter]) -> None:
    torch.optim.SGD(parameters).zero_grad(set_to_none=False)


def _drops(parameters: list[nn.Parameter]) -> None:
    torch.optim.SGD(parameters).zero_grad()


def _asks(parameters: list[nn.Parameter]) -> None:
    for one in parameters:
        assert one.grad is not None
        assert one.grad.shape == one.shape
        assert one.grad.numel() == one.numel()
        assert not one.grad.is_sparse


@pytest.mark.parametrize("use", [_zeroes, _drops, _asks])
def test_uses_that_need_no_values_are_no_reason(
    parameters: list[nn.Parameter], use: Callable[[list[nn.Parameter]], None]
) -> None:
    uses = GradientUses(parameters)
    uses.watch()
    use(parameters)
    uses.lift()
    assert list(uses.reasons()) == []


@pytest.mark.parametrize(
    "use",
    [
        lambda gradient: gradient.norm(),
        lambda gradient: gradient.data.norm(),
        lambda gradient: gradient.detach(),
        lambda gradient: torch.stack([gradient, gradient]),
        lambda gradient: gradient.mul_(0.5),
        lambda gradient: float(gradient[0]),
    ],
)
def test_reading_or_changing_a_gradient_is_a_reason(
    parameters: list[nn.Parameter], use: Callable[[torch.Tensor], object]
) -> None:
    uses = GradientUses(parameters)
    uses.watch()
    assert parameters[0].grad is not None
    use(parameters[0].grad)
    uses.lift()
    (reason,) = uses.reasons()
    assert reason.startswith("it reads gradients (")


@pytest.mark.parametrize(
    ("copied", "name"),
    [
        (copy.deepcopy, "__deepcopy__"),
        (lambda gradients: pickle.loads(pickle.dumps(gradients)), "__reduce_ex__"),
        (lambda gradients: [copy.copy(one) for one in gradients], "__reduce_ex__"),
    ],
)
def test_gradients_are_copied_as_ordinary_tensors(
    parameters: list[nn.Parameter], copied: Callable[[list[torch.Tensor]], list[torch.Tensor]], name: str
) -> None:
    uses = GradientUses(parameters)
    uses.watch()
    given = [one.grad for one in parameters if one.grad is not None]
    found = copied(given)
    for one, gradient in zip(found, given, strict=True):
        assert type(one) is torch.Tensor
        assert one.tolist() == gradient.tolist()
    uses.lift()
    assert next(iter(uses.reasons())).startswith(f"it reads gradients ({name}")


def test_changes_reach_the_gradient_itself(parameters: list[nn.Parameter]) -> None:
    uses, before = GradientUses(parameters), parameters[0].grad
    uses.watch()
    assert parameters[0].grad is not before
    torch.nn.utils.clip_grad_value_(parameters, 1.5)
    uses.lift()
    assert parameters[0].grad is before
    assert before is not None
    assert before.tolist() == [1.5] * 3
    assert type(before) is torch.Tensor


def test_a_gradient_that_is_replaced_is_a_reason(parameters: list[nn.Parameter]) -> None:
    uses = GradientUses(parameters)
    uses.watch()
    parameters[0].grad = torch.zeros(3)
    uses.lift()
    assert list(uses.reasons()) == ["it reads gradients (replaced)"]
    assert parameters[0].grad.tolist() == [0.0] * 3


@pytest.mark.parametrize(
    "put",
    [
        lambda gradient, other: setattr(gradient, "data", other),
        lambda gradient, other: gradient.set_(other),
    ],
)
def test_what_is_put_into_a_gradient_stays_there(
    parameters: list[nn.Parameter], put: Callable[[torch.Tensor, torch.Tensor], object]
) -> None:
    uses, before = GradientUses(parameters), parameters[0].grad
    uses.watch()
    assert parameters[0].grad is not None
    put(parameters[0].grad, torch.full((3,), 7.0))
    uses.lift()
    assert parameters[0].grad is before
    assert before is not None
    assert before.tolist() == [7.0] * 3
    assert type(before) is torch.Tensor
    (reason,) = uses.reasons()
    assert "replaced" in reason


def _clip(uses: GradientUses, given: list[nn.Parameter], max_norm: float, norm_type: float = 2.0) -> None:
    uses.watch()
    with uses.clipping(given, max_norm, norm_type):
        torch.nn.utils.clip_grad_norm_(given, max_norm, norm_type)
    uses.lift()


def test_clipping_all_gradients_to_one_norm_can_be_declared(parameters: list[nn.Parameter]) -> None:
    uses = GradientUses(parameters)
    _clip(uses, parameters, 0.5)
    # A parameter without a gradient changes no norm.
    _clip(uses, [*parameters, nn.Parameter(torch.ones(2))], 0.5)
    assert uses.clip_norm == 0.5
    assert list(uses.reasons()) == []
    norms = [one.grad.norm() for one in parameters if one.grad is not None]
    torch.testing.assert_close(torch.stack(norms).norm(), torch.tensor(0.5), rtol=1e-4, atol=1e-4)


def _other() -> nn.Parameter:
    made = nn.Parameter(torch.ones(2))
    made.grad = torch.ones(2)
    return made


@pytest.mark.parametrize(
    "clips",
    [
        lambda uses, given: _clip(uses, given[:1], 0.5),
        lambda uses, given: _clip(uses, [*given, _other()], 0.5),
        lambda uses, given: _clip(uses, given, 0.5, norm_type=1.0),
        lambda uses, given: _clip(uses, given, float("inf")),
        lambda uses, given: (_clip(uses, given, 0.5), _clip(uses, given, 0.4)),
    ],
)
def test_other_clipping_is_a_reason(
    parameters: list[nn.Parameter], clips: Callable[[GradientUses, list[nn.Parameter]], object]
) -> None:
    uses = GradientUses(parameters)
    clips(uses, parameters)
    assert uses.clip_norm is None
    assert list(uses.reasons()) == ["it clips some gradients, or others with them, or not always to the same norm"]


def test_a_scaler_is_seen(parameters: list[nn.Parameter]) -> None:
    optimizer, scaler = torch.optim.SGD(parameters, lr=0.1), torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.zeros(()))
    uses = GradientUses(parameters)
    uses.watch()
    scaler.unscale_(optimizer)
    uses.lift()
    assert uses.scales
    assert list(uses.reasons()) == []
    assert parameters[0].grad is not None
    assert parameters[0].grad.tolist() == [0.5] * 3
