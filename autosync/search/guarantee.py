"""The guarantee: the finalists against what the user has today, measured again, in turn.

The fastest of many noisy trials is partly the luckiest. So the best few run once more, interleaved with stock DDP, and
the winner is declared from that comparison alone. If nothing beats the default for certain, the default is the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autosync.datasets.schema import Failure, Measurement
from autosync.errors import OperationError
from autosync.search.candidates import STOCK_DDP, Candidate
from autosync.search.progress import SILENT, Progress
from autosync.search.trial import Trials
from autosync.trials.compare import Comparison, Ratio, compare
from autosync.trials.policy import measure
from autosync.trials.service import TrialFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """How one contestant did: its steps, and how many times as fast as stock DDP it is (None for stock DDP itself)."""

    candidate: Candidate
    measurement: Measurement
    ratio: Ratio | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The contests, the default's first; the winner, which is the default unless one is faster for certain.

    `left_out` has the finalists that could not be measured again, by name.
    """

    contests: tuple[Contest, ...]
    winner: Contest
    left_out: Mapping[str, Failure]

    @property
    def beats_default(self) -> bool:
        return self.winner.candidate != STOCK_DDP


def prove(trials: Trials, finalists: Sequence[Candidate], *, seed: int = 0, progress: Progress = SILENT) -> Verdict:
    """Measure stock DDP and the finalists in turn and declare the winner; stock DDP alone where there are none."""
    if not finalists:
        return _default_alone(trials)
    entrants = (STOCK_DDP, *finalists)
    comparison = compare(
        trials.service,
        [trials.contestant(candidate) for candidate in entrants],
        design=trials.effort.proof,
        policy=trials.effort.trial,
        seed=seed,
        compute_seconds=trials.model.step_seconds,
        progress=progress.now,
    )
    return judge(comparison, entrants)


def _default_alone(trials: Trials) -> Verdict:
    contestant = trials.contestant(STOCK_DDP)
    policy, compute_seconds = trials.effort.trial, trials.model.step_seconds
    try:
        measurement = measure(trials.service, contestant, policy, compute_seconds=compute_seconds)
    except TrialFailed as failure:
        raise OperationError(f"stock DDP could not be measured ({failure.kind}): {failure.message}") from failure
    contest = Contest(candidate=STOCK_DDP, measurement=measurement, ratio=None)
    return Verdict(contests=(contest,), winner=contest, left_out={})


def judge(comparison: Comparison, entrants: Sequence[Candidate]) -> Verdict:
    """The fastest of those that beat stock DDP with 95 % confidence in all of them together; else stock DDP."""
    failure = comparison.failures.get(STOCK_DDP.name)
    if failure is not None:
        what = f"stock DDP could not be measured again ({failure.kind}): {failure.message}"
        raise OperationError(f"{what}; without it nothing is proved")
    ratios = {ratio.name: ratio for ratio in comparison.ratios}
    contests = tuple(
        Contest(
            candidate=candidate,
            measurement=comparison.measurements[candidate.name],
            ratio=ratios.get(candidate.name),
        )
        for candidate in entrants
        if candidate.name in comparison.measurements
    )
    faster = [contest for contest in contests if contest.candidate.name in comparison.beats_first]
    winner = max(faster, key=_speedup, default=contests[0])
    return Verdict(contests=contests, winner=winner, left_out=comparison.failures)


def _speedup(contest: Contest) -> float:
    assert contest.ratio is not None, "only who is compared with stock DDP beats it"
    return contest.ratio.speedup.value
