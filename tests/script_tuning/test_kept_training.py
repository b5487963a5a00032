"""A kept training goes on to the script's end, and is tuned again when it has become slower."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from autosync.datasets.measured_input import MeasuredInput
from autosync.script_tuning.drift import Drift
from autosync.script_tuning.kept_training import Chosen, keep_training, winner_seconds
from autosync.script_tuning.service import ScriptTrials
from autosync.trials.failures import TrialFailed


class _Script:
    """A script that makes eight steps at once, each of which takes as long as `seconds` says at that time."""

    def __init__(self, seconds: list[float]) -> None:
        self.num_steps = 0
        self.trained: list[Any] = []
        self._seconds = seconds

    def train_on(self, bundle: Any) -> list[float] | None:
        if self.num_steps == len(self._seconds):
            return None
        self.num_steps += 8
        self.trained.append(bundle)
        return self._seconds[self.num_steps - 8 : self.num_steps]


def _chosen(seconds: float, bundle: str | None, *, wait_seconds: float = 0.0) -> Chosen:
    measurement = SimpleNamespace(
        step_seconds=((seconds,) * 32, (seconds / 2,) * 32),
        median_seconds=seconds,
        input=MeasuredInput(wait_seconds=(0.0, wait_seconds), in_step=True),
    )
    return cast("Any", (SimpleNamespace(winner=SimpleNamespace(measurement=measurement)), bundle))


def test_a_step_takes_as_long_as_its_slowest_rank() -> None:
    assert winner_seconds(_chosen(0.1, None)[0]) == [0.1] * 32


def test_steps_of_the_proof_that_waited_for_input_do_not_show_what_is_usual_without() -> None:
    assert winner_seconds(_chosen(0.1, None, wait_seconds=0.001)[0]) == [0.1] * 32
    assert winner_seconds(_chosen(0.1, None, wait_seconds=0.01)[0]) == []
    # The first steps show it, which are given without their waits.
    script, drifts = _Script([0.09] * 80 + [0.2] * 80), list[Drift]()
    chosen = _chosen(0.2, "winner", wait_seconds=0.11)
    keep_training(cast("ScriptTrials", script), chosen, told=drifts.append, refused=pytest.fail)
    assert [(drift.num_steps, drift.before_seconds) for drift in drifts] == [(104, 0.09)]


def test_a_slower_training_is_told_until_the_script_ends() -> None:
    script, drifts = _Script([0.1] * 80 + [0.2] * 80 + [0.1] * 80), list[Drift]()
    keep_training(cast("ScriptTrials", script), _chosen(0.1, "winner"), told=drifts.append, refused=pytest.fail)
    assert script.trained == ["winner"] * 30
    assert [(drift.num_steps, drift.is_slower) for drift in drifts] == [(104, True), (184, False)]


def test_a_slower_training_goes_on_by_what_is_found_then() -> None:
    script, drifts = _Script([0.1] * 80 + [0.2] * 80 + [0.1] * 80), list[Drift]()
    found = iter([_chosen(0.2, "other")])
    keep_training(
        cast("ScriptTrials", script),
        _chosen(0.1, "winner"),
        told=drifts.append,
        refused=pytest.fail,
        tune_again=lambda: next(found),
    )
    # It is tuned once: steps that become faster are no reason.
    assert script.trained == ["winner"] * 13 + ["other"] * 17


def test_a_tuning_in_vain_leaves_what_trains() -> None:
    script, drifts = _Script([0.1] * 80 + [0.2] * 160), list[Drift]()
    keep_training(
        cast("ScriptTrials", script),
        _chosen(0.1, None),
        told=drifts.append,
        refused=pytest.fail,
        tune_again=lambda: None,
    )
    assert script.trained == [None] * 30
    assert len(drifts) == 1


def test_a_refused_winner_is_told_and_stock_ddp_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    script, reasons = _Script([0.1] * 80), list[str]()
    train_on = script.train_on

    def refusing(bundle: Any) -> list[float] | None:
        if bundle == "winner" and script.num_steps == 16:
            raise TrialFailed("refused", "its model has changed")
        return train_on(bundle)

    monkeypatch.setattr(script, "train_on", refusing)
    keep_training(cast("ScriptTrials", script), _chosen(0.1, "winner"), told=pytest.fail, refused=reasons.append)
    assert reasons == ["its model has changed"]
    assert script.trained == ["winner"] * 2 + [None] * 8
