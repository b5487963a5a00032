"""The guarantee: the finalists against what the user has today, measured again, in turn.

The fastest of many noisy trials is partly the luckiest. So the best few run once more, interleaved with stock DDP, and
the winner is declared by the ratio of medians with its interval. If nothing beats the default for certain, the default
is the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autosync.errors import OperationError
from autosync.search.candidates import STOCK_DDP, Candidate
from autosync.search.trial import NUM_WARMUP_STEPS, Trials
from autosync.trials.service import TrialFailed
from autosync.trials.statistics import Interval, median_interval, ratio_interval, slowest_rank

NUM_BLOCKS = 12
NUM_STEPS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """How one finalist did: its step time, and how many times faster than stock DDP it is."""

    candidate: Candidate
    seconds: Interval
    speedup: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The contests, the default's first. `winner` is the default unless a finalist is faster for certain."""

    contests: tuple[Contest, ...]
    winner: Contest

    @property
    def beats_default(self) -> bool:
        return self.winner.candidate != STOCK_DDP


def prove(trials: Trials, finalists: Sequence[Candidate]) -> Verdict:
    """Measure stock DDP and the finalists in turn and declare the winner."""
    entrants = (STOCK_DDP, *finalists)
    try:
        seconds = _measure_in_turn(trials, entrants)
    except TrialFailed as failure:
        what = f"the finalists could not be measured again ({failure.kind}): {failure.message}"
        raise OperationError(what) from failure
    contests = tuple(
        Contest(
            candidate=candidate,
            seconds=median_interval(measured),
            speedup=ratio_interval(seconds[0], measured, num_blocks=NUM_BLOCKS),
        )
        for candidate, measured in zip(entrants, seconds, strict=True)
    )
    return Verdict(contests=contests, winner=declare(contests))


def _measure_in_turn(trials: Trials, entrants: Sequence[Candidate]) -> list[list[float]]:
    """The step times of each, from blocks in turn."""
    service = trials.service
    names = []
    for candidate in entrants:
        contestant = trials.contestant(candidate)
        service.prepare(contestant)
        service.run(contestant.name, NUM_WARMUP_STEPS)
        names.append(contestant.name)
    seconds: list[list[float]] = [[] for _ in names]
    for _ in range(NUM_BLOCKS):
        for name, measured in zip(names, seconds, strict=True):
            measured.extend(slowest_rank(service.run(name, NUM_STEPS).step_seconds))
    for name in names:
        service.release(name)
    return seconds


def declare(contests: Sequence[Contest]) -> Contest:
    """The fastest of those whose whole interval is above 1; the first (the default) if there is none."""
    faster = [contest for contest in contests[1:] if contest.speedup.low > 1]
    return min(faster, key=lambda contest: contest.seconds.value, default=contests[0])
