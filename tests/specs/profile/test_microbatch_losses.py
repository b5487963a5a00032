"""A profile says whether microbatches train the model that their batch trains, with computed times too."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from autosync.specs.model import ModelSpec
from autosync.specs.profile.microbatch_losses import small_microbatches, why_losses_mix
from autosync.specs.profile.run import profile
from autosync.specs.task import Task

BATCH, WIDTH = 8, 4


def _layers(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *between, nn.Tanh(), nn.Linear(WIDTH, 1))


def _task(
    model: Callable[[], nn.Module] = _layers,
    loss: Callable[[nn.Module, torch.Tensor], torch.Tensor] = lambda model, x: model(x).square().mean(),
    batch_size: int = BATCH,
) -> Task:
    return Task(
        name="small",
        model=model,
        batch=lambda generator: torch.randn(batch_size, WIDTH, generator=generator),
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        batch_size=batch_size,
    )


def _masked_mean(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    mask = (x[:, :1] > 0).float()
    return (model(x).square() * mask).sum() / (mask.sum() + 1)


def _noisy(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x + torch.randn_like(x)).square().mean()


@pytest.fixture(params=["measured", "computed"])
def profiled(request: pytest.FixtureRequest) -> Callable[[Task], ModelSpec]:
    return lambda task: profile(task, times=request.param, steps=1, cuts=True)


@pytest.mark.parametrize(
    "task",
    [
        _task(),
        _task(batch_size=1),
        _task(lambda: _layers(nn.Dropout(0.5))),
        _task(lambda: _layers(nn.LayerNorm(WIDTH))),
        _task(lambda: _layers(nn.BatchNorm1d(WIDTH).eval().requires_grad_(requires_grad=False))),
    ],
    ids=["mean", "one example", "dropout", "layer norm", "frozen batch norm"],
)
def test_microbatches_that_train_the_same_model_are_timed(profiled: Callable[[Task], ModelSpec], task: Task) -> None:
    timeline = profiled(task).timeline
    assert (timeline.mixes, timeline.uncut) == ("", "")
    assert timeline.cuts
    assert len(timeline.sizes) >= 3


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (_task(lambda: _layers(nn.BatchNorm1d(WIDTH))), "a forward pass changes 1."),
        (_task(lambda: _layers(nn.BatchNorm1d(WIDTH, track_running_stats=False))), "the mean of theirs"),
        (_task(loss=lambda model, x: model(x).square().sum()), "the mean of theirs"),
        (_task(loss=_masked_mean), "the mean of theirs"),
        (_task(loss=lambda model, x: functional.normalize(model(x), dim=0).mean()), "the mean of theirs"),
        (_task(loss=_noisy), "draws random numbers besides dropout"),
    ],
    ids=["batch norm", "batch norm without buffers", "sum", "masked mean", "normalised over the batch", "noise"],
)
def test_others_keep_their_cuts_and_say_why(profiled: Callable[[Task], ModelSpec], task: Task, reason: str) -> None:
    timeline = profiled(task).timeline
    assert reason in timeline.mixes
    assert timeline.cuts
    assert timeline.sizes == ()


def test_a_model_for_one_number_of_examples_cannot_be_cut(profiled: Callable[[Task], ModelSpec]) -> None:
    timeline = profiled(_task(loss=lambda model, x: model(x.view(BATCH, WIDTH)).square().mean())).timeline
    assert "a microbatch cannot pass" in timeline.uncut
    assert timeline.cuts == ()


def test_both_ways_of_profiling_find_the_same_cuts() -> None:
    task = _task(lambda: _layers(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)))
    measured, computed = (profile(task, times=times, steps=1, cuts=True).timeline for times in ("measured", "computed"))
    assert computed.cuts == measured.cuts
    seconds = [one.seconds for one in computed.sizes]
    assert seconds == sorted(seconds)


def test_a_model_that_is_larger_than_the_memory_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autosync.specs.profile.computed_training.free_bytes", lambda: 100)
    spec = profile(_task(loss=lambda model, x: model(x).square().sum()), times="computed", steps=1, cuts=True)
    assert spec.timeline.mixes == ""
    assert any("too many for this machine's memory" in note for note in spec.notes)


def test_the_pass_of_a_microbatch_leaves_gradients_alone() -> None:
    task, model = _task(), _layers()
    pieces = small_microbatches(torch.randn(BATCH, WIDTH), torch.Tensor)
    assert [len(one) for one in pieces] == [2, 2, 2, 2]
    assert why_losses_mix(task, model, pieces) == ""
    assert all(parameter.grad is None for parameter in model.parameters())
    summed = replace(task, loss=lambda model, x: model(x).square().sum())
    assert "the mean of theirs" in why_losses_mix(summed, model, pieces[:2])


@pytest.mark.parametrize("whole", range(1, 12))
def test_microbatches_have_equally_many_examples(whole: int) -> None:
    pieces = small_microbatches(torch.randn(whole, WIDTH), lambda: torch.randn(1, WIDTH))
    assert 2 <= len(pieces) <= 4
    assert len({len(one) for one in pieces}) == 1


def test_two_microbatches_with_equally_many_words_do_not_hide_a_masked_mean() -> None:
    masks = torch.tensor([[1.0, 1, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]])
    batch = masks * torch.arange(1.0, 7).unsqueeze(1)

    def masked(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (x.square() * (x > 0)).sum() / (x > 0).sum()

    pieces = small_microbatches(batch, torch.Tensor)
    assert "3 microbatches together" in why_losses_mix(_task(loss=masked), nn.Identity(), pieces)
