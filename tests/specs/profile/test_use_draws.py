"""Profiles of models whose steps use different parameters: what is drawn, and for which models."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autosync.specs.model import ModelSpec
from autosync.specs.profile import use_draws
from autosync.specs.profile.run import profile
from tests.helpers.profile_tasks import task

torch.set_num_threads(1)
NUM_EXPERTS = 4
FIRST, SECOND = "experts.0.weight", "experts.1.weight"


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, as many steps are drawn as on an idle one."""
    monkeypatch.setattr(use_draws, "MOST_SECONDS", 1e6)


class Experts(nn.Module):
    """A trunk and experts, of which `choose` picks one for a batch."""

    def __init__(self, choose: Callable[[Tensor, int], int]) -> None:
        super().__init__()
        self.trunk = nn.Linear(8, 8)
        self.experts = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(NUM_EXPERTS))
        self.num_calls = 0
        self._choose = choose

    def forward(self, x: Tensor) -> Tensor:
        number = self._choose(x, self.num_calls)
        self.num_calls += 1
        chosen: Any = self.experts[number]
        y: Tensor = chosen(torch.tanh(self.trunk(x)))
        return y


def _profile(choose: Callable[[Tensor, int], int], *, times: Any = "measured", **fields: Any) -> ModelSpec:
    standard = {"batch": lambda generator: torch.randn(2, 8, generator=generator)}
    return profile(task(lambda: Experts(choose), **standard | fields), steps=6, times=times)


def _by_batch(x: Tensor, _: int) -> int:
    return int(abs(float(x[0, 0])) * 1000) % NUM_EXPERTS


@pytest.mark.parametrize("times", ["measured", "computed"])
def test_what_depends_on_the_step_is_the_same_on_all_ranks(times: str) -> None:
    sample = _profile(lambda _, turn: turn % NUM_EXPERTS, times=times).use_sample
    assert sample is not None
    assert sample.groups == tuple((f"experts.{number}.weight",) for number in range(NUM_EXPERTS))
    assert all(len(set(step)) == 1 for step in sample.steps)
    assert sample.is_shared
    assert sample.share([FIRST], 1) == sample.share([FIRST], 16) == 0.25


def test_what_depends_on_the_batch_differs_between_ranks() -> None:
    sample = _profile(_by_batch).use_sample
    assert sample is not None
    assert not sample.is_shared
    assert 0.1 < sample.share([FIRST], 1) < 0.5
    assert sample.share([FIRST], 8) > 0.7
    assert sample.share(["trunk.weight"], 1) == 1


def test_what_draws_from_the_common_seed_is_the_same_on_all_ranks() -> None:
    """As in trials, whose ranks all begin with one seed; the program's own random numbers go on as before."""
    random.seed(5)
    before = random.getstate()
    for choose in (lambda *_: int(torch.randint(NUM_EXPERTS, ())), lambda *_: random.randrange(NUM_EXPERTS)):
        random.setstate(before)
        sample = _profile(choose).use_sample
        assert sample is not None
        assert all(len(set(step)) == 1 for step in sample.steps)


def test_a_step_uses_what_any_of_its_microsteps_uses() -> None:
    sample = _profile(lambda _, turn: turn % NUM_EXPERTS, accumulation_steps=2).use_sample
    assert sample is not None
    assert len(sample.groups) == 2
    assert sample.share([FIRST], 1) == 0.5


def test_nothing_is_drawn_if_every_step_uses_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(use_draws.UseDraws, "sample", lambda *_: pytest.fail("drawn"))
    assert profile(task(lambda: nn.Linear(8, 2)), steps=2).use_sample is None


def test_a_parameter_that_is_never_used_stays_where_it_was() -> None:
    """Its order of use and readiness is as without a sample, and so is the fingerprint of plans."""
    model = _profile(lambda *_: 0)
    assert model.use_sample is not None
    assert model.use_sample.share([SECOND], 64) == 0
    assert [v.name for v in model.variables if v.idle] == [f"experts.{number}.weight" for number in (1, 2, 3)]
    assert model.variable(SECOND).ready > model.variable("trunk.weight").ready


def test_slow_steps_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(use_draws, "MOST_SECONDS", 0.0)
    sample = _profile(_by_batch).use_sample
    assert sample is not None
    assert (len(sample.steps), sample.num_ranks) == (use_draws.LEAST_STEPS, use_draws.NUM_RANKS)
