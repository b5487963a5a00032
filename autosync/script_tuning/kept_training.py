"""A training that goes on after its tuning: it is watched for drift, and tuned again if that is wanted."""

from __future__ import annotations

from collections.abc import Callable

from autosync.script_tuning.drift import Drift, DriftWatch
from autosync.script_tuning.input_waits import InputWaits
from autosync.script_tuning.service import ScriptTrials
from autosync.search.guarantee import Verdict
from autosync.strategy.bundle import Bundle
from autosync.trials.failures import TrialFailed

Chosen = tuple[Verdict, Bundle | None]
"""The verdict of a tuning, and what trains by it: the winner, or stock DDP (None)."""


def keep_training(
    trials: ScriptTrials,
    chosen: Chosen,
    *,
    told: Callable[[Drift], None],
    refused: Callable[[str], None],
    tune_again: Callable[[], Chosen | None] | None = None,
) -> None:
    """Train by what was chosen until the script ends, and tell of each drift.

    After a drift to slower steps, `tune_again` returns what trains from then on; None if that is what trains already.
    If the ranks refuse it, `refused` gets the reason, and the script goes on under stock DDP, without a watch.
    """
    verdict, bundle = chosen
    watch = DriftWatch(winner_seconds(verdict))
    try:
        while (seconds := trials.train_on(bundle)) is not None:
            drift = watch.take(seconds, trials.num_steps)
            if drift is None:
                continue
            told(drift)
            if tune_again is not None and drift.is_slower and (again := tune_again()) is not None:
                verdict, bundle = again
                watch = DriftWatch(winner_seconds(verdict))
    except TrialFailed as failure:
        refused(failure.message)
        while trials.train_on(None) is not None:
            pass


def winner_seconds(verdict: Verdict) -> list[float]:
    """Return the times of the winner's steps in the proof, on the slowest rank each.

    The list is empty if they contain waits for input: the proof knows only their sum, and the watch leaves them out.
    """
    measured = verdict.winner.measurement
    if measured.input is not None:
        waits = InputWaits(step_seconds=measured.median_seconds, wait_seconds=max(measured.input.wait_seconds))
        if waits.is_worth_telling:
            return []
    return list(map(max, zip(*measured.step_seconds, strict=True)))
