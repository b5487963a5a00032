"""The progress of a search: finished trials, the best so far, the time left, and the listeners that are told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from autosync import units
from autosync.datasets.schema import Failure, Measurement, Record
from autosync.search.candidates import STOCK_DDP, Candidate, candidate_of
from autosync.search.measurement_effort import Effort
from autosync.trials.compare import NUM_ALONE, plan_rounds


class ProgressListener(Protocol):
    """A listener for progress.

    The tuning thread calls it, and ranks wait meanwhile, so no method may raise or take long.
    """

    def note(self, text: str) -> None:
        """Report a result: a line to keep."""

    def now(self, text: str) -> None:
        """Report what is being done from now until the next call."""

    def tried(self, status: SearchStatus, number: int) -> None:
        """Report that the trial of this number has ended; the status has taken it in."""


def proof_seconds(step_seconds: Sequence[float], effort: Effort) -> float:
    """Return about how long a proof of contestants with these step times takes."""
    policy = effort.proof_policy(min(step_seconds))
    num_before = NUM_ALONE + policy.min_warmup_steps + 2 * policy.window_steps
    return sum(step_seconds) * num_before + plan_rounds(step_seconds, effort.proof).seconds(step_seconds)


class SilentListener:
    """A listener that ignores everything."""

    def note(self, text: str) -> None:
        pass

    def now(self, text: str) -> None:
        pass

    def tried(self, status: SearchStatus, number: int) -> None:
        pass


SILENT = SilentListener()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTrial:
    """A candidate and the record of its trial."""

    candidate: Candidate
    record: Record

    @property
    def measurement(self) -> Measurement | None:
        return self.record.measurement


class SearchStatus:
    """The status of one search: its limits on trials and time, and its results so far.

    With `is_open` the search is expected to end before it has made all trials.
    """

    def __init__(
        self,
        *,
        num_trials: int,
        budget_seconds: float | None,
        effort: Effort,
        is_open: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tried: list[FinishedTrial] = []
        self._num_trials = num_trials
        self._budget_seconds = budget_seconds
        self._effort = effort
        self._is_open = is_open
        self._clock = clock
        self._started = clock()
        self._num_before = 0
        self._proof_began: float | None = None

    def go_on(self, records: Iterable[Record]) -> None:
        """Take in the records that the study already has. The time that they took does not count."""
        self.take_in(records)
        self._num_before = len(self.tried)

    def take_in(self, records: Iterable[Record]) -> None:
        """Take in all current records of the study, also those of other tuners."""
        known = {one.record.trial: one for one in self.tried}
        self.tried = [
            known.get(record.trial) or FinishedTrial(candidate=candidate_of(record), record=record)
            for record in records
        ]

    @property
    def records(self) -> list[Record]:
        """The records of all trials so far."""
        return [one.record for one in self.tried]

    @property
    def spent_seconds(self) -> float:
        return self._clock() - self._started

    @property
    def num_left(self) -> int:
        """The number of trials that may still run."""
        return max(self._num_trials - len(self.tried), 0)

    def is_over(self, num_elsewhere: int = 0) -> bool:
        """Return whether no more trials may begin: the time is up, or trials under way elsewhere use up the rest."""
        is_late = self._budget_seconds is not None and self.spent_seconds >= self._budget_seconds
        return is_late or self.num_left <= num_elsewhere

    @property
    def best_seconds(self) -> float | None:
        """The best median so far."""
        return min((one.measurement.median_seconds for one in self.tried if one.measurement), default=None)

    def seconds_left(self) -> float | None:
        """Return about how long search and proof will still take; None if it is not known.

        It is not while nothing has been measured, or while a search is open.
        """
        if self.best_seconds is None or (self._is_open and self._proof_began is None):
            return None
        num_here = len(self.tried) - self._num_before
        if num_here == 0:
            return None
        if self._proof_began is not None:
            return max(self.proof_seconds(self.best_seconds) - (self._clock() - self._proof_began), 0.0)
        search = self.spent_seconds / num_here * self.num_left
        if self._budget_seconds is not None:
            search = min(search, max(self._budget_seconds - self.spent_seconds, 0.0))
        return search + self.proof_seconds(self.best_seconds)

    def search_ends(self) -> None:
        """The proof begins now."""
        self._proof_began = self._clock()

    def proof_seconds(self, best_seconds: float) -> float:
        """Return about how long the proof takes."""
        # The finalists and the best preset are about as fast as the best, and DDP's best bucket as stock DDP.
        stock = self._stock_seconds() or best_seconds
        return proof_seconds([stock, stock, *[best_seconds] * (self._effort.num_finalists + 1)], self._effort)

    def _stock_seconds(self) -> float | None:
        """The step time of stock DDP, if it was measured."""
        stock = [one.measurement for one in self.tried if one.candidate.strategy_id == STOCK_DDP.strategy_id]
        return next((one.median_seconds for one in stock if one is not None), None)

    def beginning(self, candidate: Candidate) -> str:
        """Return the message before a trial of this candidate."""
        known = [self._place(len(self.tried) + 1), *self._best(), *self._left()]
        return f"trying {candidate.name} ({'; '.join(known)})"

    def proving(self, num_finalists: int) -> str:
        """Return the message after the last trial, before the proof."""
        if num_finalists == 0:
            return "measuring stock DDP"
        if not self.tried:
            return f"measuring stock DDP and the {num_finalists} that may be fastest, in turn"
        fastest = "the fastest" if num_finalists == 1 else f"the {num_finalists} fastest"
        return f"measuring stock DDP and {fastest} again, in turn"

    def outcome(self, number: int) -> str:
        """Return the message after the trial of this number: its result and the best so far."""
        place, last = next(pair for pair in enumerate(self.tried, start=1) if pair[1].record.trial == number)
        told = [f"{self._place(place)}: {last.candidate.name}: {_outcome(last)}"]
        told += [f"({best})" for best in self._best()]
        return " ".join(told)

    def outage(self, candidate: Candidate, failure: Failure) -> str:
        """Return the message after a trial in which the machines failed. Such a trial does not count."""
        kind = "infrastructure" if failure.kind == "infrastructure" else f"infrastructure, {failure.kind}"
        return f"{candidate.name}: {kind}: {failure.message}; it will be tried again"

    def _place(self, number: int) -> str:
        return f"trial {number} of {'at most ' if self._is_open else ''}{self._num_trials}"

    def _best(self) -> list[str]:
        measured = [(one.measurement.median_seconds, one.candidate.name) for one in self.tried if one.measurement]
        if not measured:
            return []
        seconds, name = min(measured)
        return [f"best so far: {seconds * 1e3:.2f} ms, {name}"]

    def _left(self) -> list[str]:
        seconds = self.seconds_left()
        return [] if seconds is None else [f"about {units.format_time(max(round(seconds), 1))} left"]


def _outcome(tried: FinishedTrial) -> str:
    measurement, failure = tried.measurement, tried.record.failure
    if measurement is None:
        assert failure is not None, "a record has a measurement or a failure"
        return f"{failure.kind}: {failure.message}"
    told = f"{measurement.median_seconds * 1e3:.2f} ms a step"
    if "stopped_early" in measurement.flags:
        told += ", stopped early"
    if "busy_machine" in measurement.flags:
        told += f", other programs used {measurement.other_cpu_share:.0%} of the processors"
    return told
