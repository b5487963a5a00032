"""What a script does in its observed steps is a reason why only its own optimizer may update, or it is none."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autosync.errors import OperationError
from autosync.script.script_facts import ScriptFacts
from autosync.script.switching_door import SwitchingDoor

NUM_STEPS = 5


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Training:
    """A script that trains two layers, each by an optimizer of its own."""

    def __init__(self) -> None:
        self.model: Any = DistributedDataParallel(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
        self.first, _, self.last = self.model.module
        self.optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (self.first, self.last)]
        self.scaler = torch.amp.GradScaler("cpu")
        self.other = nn.Parameter(torch.ones(2))
        self.other.grad = torch.ones(2)

    def loss(self) -> Any:
        return self.model(torch.randn(5, 3)).square().mean()

    def zero(self, *, set_to_none: bool = True) -> None:
        for one in self.optimizers:
            one.zero_grad(set_to_none=set_to_none)

    def step(self) -> None:
        for one in self.optimizers:
            one.step()


class Seen:
    """Observes the first steps."""

    def __init__(self) -> None:
        self.facts: ScriptFacts | None = None

    def step_begins(self, door: SwitchingDoor) -> None:
        number = door.meter.num_steps
        if number == 0:
            door.observe()
        elif number == NUM_STEPS:
            self.facts = door.facts("seen")


def _seen(step: Callable[[Training, int], None], num_skipped: int = 0) -> ScriptFacts:
    seen = Seen()
    with SwitchingDoor(seen).open():
        training = Training()
        for number in range(NUM_STEPS + num_skipped + 1):
            step(training, number)
    assert seen.facts is not None
    return seen.facts


def _reasons(step: Callable[[Training, int], None]) -> tuple[str, ...]:
    return _seen(step).reasons


def _between(act: Callable[[Training], object]) -> Callable[[Training, int], None]:
    """Steps in which something is done between the backward pass and the update."""

    def step(training: Training, _: int) -> None:
        training.zero()
        training.loss().backward()
        act(training)
        training.step()

    return step


def _zeroes_late(training: Training, number: int) -> None:
    loss = training.loss()
    training.zero(set_to_none=number % 2 == 0)
    loss.backward()
    training.step()


def _zeroes_after_each(training: Training, number: int) -> None:
    training.loss().backward()
    for one in training.optimizers:
        one.step()
        one.zero_grad(set_to_none=number % 2 == 0)


def _accumulates(training: Training, _: int) -> None:
    training.zero()
    for _ in range(2):
        with training.model.no_sync():
            training.loss().backward()
    training.loss().backward()
    training.step()


def _decays_by_a_pass_before_the_first(training: Training, _: int) -> None:
    training.zero()
    torch.stack([one.square().sum() for one in training.model.parameters()]).sum().backward()
    training.loss().backward()
    training.step()


def _throws_a_pass_away(training: Training, _: int) -> None:
    for _ in range(2):
        training.zero()
        training.loss().backward()
    training.step()


def _trains_another_model(training: Training, _: int) -> None:
    another = nn.Linear(2, 1)
    training.loss().backward()
    another(torch.ones(1, 2)).sum().backward()
    training.step()
    another(torch.ones(1, 2)).sum().backward()
    training.zero()


@pytest.mark.parametrize(
    "step",
    [
        _between(lambda training: None),
        _between(lambda training: training.zero()),
        _between(lambda training: nn.utils.clip_grad_norm_(training.model.parameters(), 0.1)),
        _zeroes_late,
        _zeroes_after_each,
        _accumulates,
        _throws_a_pass_away,
        _trains_another_model,
    ],
)
def test_what_an_engine_can_follow_is_no_reason(step: Callable[[Training, int], None]) -> None:
    assert _reasons(step) == ()


@pytest.mark.parametrize("skipped", [(0,), (1, 2), (NUM_STEPS - 1,)])
def test_a_step_that_a_scaler_skips_is_none(skipped: tuple[int, ...]) -> None:
    def step(training: Training, number: int) -> None:
        training.zero()
        training.scaler.scale(training.loss() * (math.inf if number in skipped else 1.0)).backward()
        for one in training.optimizers:
            training.scaler.step(one)
        training.scaler.update()

    facts = _seen(step, len(skipped))
    assert facts.reasons == ()
    assert facts.model.accumulation_steps == 1
    assert facts.model.loss_scaling


def _linear(step: Callable[[Training, int], None]) -> list[str]:
    """Return the variables whose gradients may travel as factors."""
    return [one.name for one in _seen(step).model.variables if one.kind == "linear"]


def test_gradients_of_layers_that_are_called_once_have_factors() -> None:
    assert sorted(_linear(_between(lambda training: None))) == ["0.weight", "2.weight"]


def _adds_weights_to_the_loss(training: Training, _: int) -> None:
    training.zero()
    (training.loss() + 0.001 * sum(one.square().sum() for one in training.model.parameters())).backward()
    training.step()


def _compares_two_passes(training: Training, _: int) -> None:
    training.zero()
    first, second = training.model(torch.randn(5, 3)), training.model(torch.randn(5, 3))
    (first - second).square().mean().backward()
    training.step()


def _compares_late(training: Training, number: int) -> None:
    (_compares_two_passes if number == NUM_STEPS - 1 else _between(lambda _: None))(training, number)


def _changes_gradients_on_their_way(training: Training, number: int) -> None:
    if number == 0:
        training.first.weight.register_hook(lambda gradient: 2 * gradient)
    _between(lambda _: None)(training, number)


def test_copies_of_a_model_that_is_observed_are_ordinary_models() -> None:
    copies: list[nn.Module] = []

    def step(training: Training, number: int) -> None:
        _between(lambda _: None)(training, number)
        written = io.BytesIO()
        torch.save(training.model.module, written)
        assert b"autosync" not in written.getvalue()
        written.seek(0)
        copies[:] = [torch.load(written, weights_only=False), copy.deepcopy(training.model.module)]
        for one in copies:
            one(torch.ones(1, 3)).sum().backward()

    facts = _seen(step)
    assert facts.reasons == ()
    assert [one.use for one in facts.model.variables] == [0, 0, 1, 1]
    for one in copies:
        assert one(torch.ones(1, 3)).shape == (1, 2)


def _accumulates_at_times(training: Training, number: int) -> None:
    training.zero()
    for _ in range(2 if number == NUM_STEPS - 1 else 1):
        training.loss().backward()
    training.step()


def _adds_late(training: Training, number: int) -> None:
    if number < NUM_STEPS - 1:
        training.zero()
    training.loss().backward()
    training.step()


@pytest.mark.parametrize(
    ("step", "linear"),
    [
        (_adds_weights_to_the_loss, []),
        (_compares_two_passes, []),
        (_compares_late, []),
        (_changes_gradients_on_their_way, ["2.weight"]),
        (_accumulates_at_times, []),
        (_adds_late, []),
    ],
)
def test_gradients_that_are_no_products_have_no_factors(
    step: Callable[[Training, int], None], linear: list[str]
) -> None:
    assert _linear(step) == linear


def test_parameters_that_are_frozen_meanwhile_are_refused() -> None:
    def step(training: Training, number: int) -> None:
        training.first.requires_grad_(number < NUM_STEPS - 1)
        _between(lambda _: None)(training, number)

    with pytest.raises(OperationError, match="has frozen or thawed parameters in the steps that were observed"):
        _seen(step)


def test_steps_without_a_backward_pass_are_refused() -> None:
    def step(training: Training, _: int) -> None:
        parameters = list(training.model.parameters())
        found = torch.autograd.grad(training.loss(), parameters)
        for one, gradient in zip(parameters, found, strict=True):
            one.grad = gradient
        training.step()

    with pytest.raises(OperationError, match=r"no backward pass brought gradients .*autograd\.grad brings none"):
        _seen(step)


def _two_losses_of_one_pass(training: Training, _: int) -> None:
    training.zero()
    loss = training.loss()
    loss.backward(retain_graph=True)
    (0.1 * loss).backward()
    training.step()


def _decays_by_a_pass_of_its_own(training: Training, number: int) -> None:
    training.zero()
    training.loss().backward()
    if number == NUM_STEPS - 1:
        torch.stack([one.square().sum() for one in training.model.parameters()]).sum().backward()
    training.step()


def _steps_within_no_sync(training: Training, _: int) -> None:
    training.zero()
    with training.model.no_sync():
        training.loss().backward()
    training.step()


@pytest.mark.parametrize("step", [_two_losses_of_one_pass, _decays_by_a_pass_of_its_own, _steps_within_no_sync])
def test_updates_by_gradients_that_ddp_does_not_synchronise_are_refused(step: Callable[[Training, int], None]) -> None:
    with pytest.raises(OperationError, match="does not synchronise the last backward pass before an update"):
        _seen(step)


def test_a_pass_of_its_own_that_a_synchronised_one_follows_is_not_refused() -> None:
    assert "its backward pass adds to gradients of the step before" in _reasons(_decays_by_a_pass_before_the_first)


def _accumulates_synchronised(training: Training, _: int) -> None:
    training.zero()
    for _ in range(2):
        training.loss().backward()
    training.step()


def _never_zeroes(training: Training, _: int) -> None:
    training.loss().backward()
    training.step()


def _steps_without_a_pass(training: Training, number: int) -> None:
    loss = training.loss()
    if number < NUM_STEPS - 1:
        training.zero()
        loss.backward()
    training.step()


def _reads_before_the_pass(training: Training, _: int) -> None:
    loss = training.loss()
    if training.first.weight.grad is not None:
        training.first.weight.grad.norm()
    training.zero()
    loss.backward()
    training.step()


def _reads_after_the_first_step(training: Training, number: int) -> None:
    _between(lambda _: None)(training, number)
    if number == 0:
        training.first.weight.grad.norm()


def _steps_in_turn(training: Training, number: int) -> None:
    training.zero()
    training.loss().backward()
    training.optimizers[number % 2].step()


def _one_steps_twice(training: Training, _: int) -> None:
    training.zero()
    training.loss().backward()
    training.step()
    training.optimizers[0].step()


def _drops_one(training: Training) -> None:
    training.last.weight.grad = None


def _clips_with_another(training: Training) -> None:
    nn.utils.clip_grad_norm_([*training.model.parameters(), training.other], 0.1)


_LOST = "it drops some gradients, or sets them to zero, before the update"


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (_accumulates_synchronised, "it runs another backward pass between a synchronised one and the update"),
        (_never_zeroes, "its backward pass adds to gradients of the step before"),
        (_steps_without_a_pass, "it updates twice with the same gradients"),
        (_reads_before_the_pass, "it reads gradients (norm)"),
        (_reads_after_the_first_step, "it reads gradients (norm)"),
        (_steps_in_turn, "its optimizers do not all step once in each step"),
        (_one_steps_twice, "its optimizers do not all step once in each step"),
        (_between(_drops_one), _LOST),
        (_between(lambda training: training.last.weight.grad.zero_()), _LOST),
        (_between(lambda training: training.zero(set_to_none=False)), _LOST),
        (
            _between(_clips_with_another),
            "it clips some gradients, or others with them, or not always to the same norm",
        ),
    ],
)
def test_what_an_engine_cannot_follow_is_a_reason(step: Callable[[Training, int], None], reason: str) -> None:
    assert _reasons(step) == (reason,)
