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
from autosync.search.trial import Trials
from autosync.trials.job import Job, new_folder
from autosync.trials.run import Failed, run_job
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
    folder = new_folder(trials.folder.logs, "guarantee")
    job = Job(
        task=trials.task,
        contestants=tuple(trials.contestant(candidate, folder.path) for candidate in entrants),
        num_blocks=NUM_BLOCKS,
        num_steps=NUM_STEPS,
        seed=trials.seed,
        timeout_seconds=trials.timeout_seconds * len(entrants),
    )
    outcome = run_job(job, trials.cluster, folder)
    if isinstance(outcome, Failed):
        what = f"the finalists could not be measured again ({outcome.kind}): {outcome.message}"
        raise OperationError(f"{what} (the logs are in {folder.path})")
    seconds = [slowest_rank(outcome.step_seconds[candidate.strategy_id]) for candidate in entrants]
    contests = tuple(
        Contest(
            candidate=candidate,
            seconds=median_interval(measured),
            speedup=ratio_interval(seconds[0], measured, num_blocks=NUM_BLOCKS),
        )
        for candidate, measured in zip(entrants, seconds, strict=True)
    )
    return Verdict(contests=contests, winner=declare(contests))


def declare(contests: Sequence[Contest]) -> Contest:
    """The fastest of those whose whole interval is above 1; the first (the default) if there is none."""
    faster = [contest for contest in contests[1:] if contest.speedup.low > 1]
    return min(faster, key=lambda contest: contest.seconds.value, default=contests[0])
