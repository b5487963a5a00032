"""How long to measure, and what makes a measurement doubtful. Rules on samples, and `measure`, which follows them.

Warm-up ends where steps are steady; then steps are taken until their median is known well enough, the budget is spent,
or the trial is clearly worse than the best so far. Every rule is a pure function of the step times so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autosync.datasets.schema import Flag, Measurement, seconds_of_steps
from autosync.trials.averaging_periods import PeriodService
from autosync.trials.contestant import Contestant
from autosync.trials.samples import Samples, Service, cpu_share, mean_bytes, peak_memory_bytes, run_seconds
from autosync.trials.statistics import Interval, correlated_median_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How long one contestant is measured.

    At least `min_warmup_steps` are discarded: stock DDP rebuilds its buckets after the first one. Steps are taken until
    the 95 % interval of their median is narrower than `interval_share` of it and the later half lasts as long as the
    earlier one, `max_steps` are measured or `budget_seconds` are spent, warm-up included. A trial whose interval lies
    above `give_up_factor` times the best so far is stopped.
    """

    min_warmup_steps: int = 4
    max_warmup_steps: int = 20
    window_steps: int = 4
    steady_share: float = 0.03
    min_steps: int = 12
    max_steps: int = 120
    steps_per_run: int = 6
    interval_share: float = 0.02
    budget_seconds: float = 30.0
    give_up_factor: float = 1.2
    max_cpu_share: float = 0.6

    def __post_init__(self) -> None:
        if not 2 <= self.min_warmup_steps <= self.max_warmup_steps:
            raise ValueError(f"{self.min_warmup_steps} to {self.max_warmup_steps} warm-up steps (2 or more)")
        if not 1 <= self.min_steps <= self.max_steps:
            raise ValueError(f"{self.min_steps} to {self.max_steps} measured steps (1 or more)")
        if self.window_steps < 2 or self.steps_per_run < 1:
            raise ValueError("a window has 2 or more steps, a run 1 or more")
        if min(self.steady_share, self.interval_share, self.budget_seconds) <= 0 or self.give_up_factor < 1:
            raise ValueError("shares and the budget are above 0, the factor for giving up is 1 or more")


DEFAULT_POLICY = Policy()


def is_level(seconds: Sequence[float], *, share: float) -> bool:
    """Whether the later half of some steps lasts as long as the earlier one.

    The halves' medians may differ by a share of the whole, or by three times the error that the steps' own scatter
    gives them, whichever is more. Medians and the median deviation throughout: in each half one outlier of three or
    four steps changes nothing. The scatter is that of the quieter half: where slow steps end within the other half,
    that one's is wide for this alone.
    """
    middle = len(seconds) // 2
    halves = (np.asarray(seconds[:middle]), np.asarray(seconds[-middle:]))
    medians = [float(np.median(half)) for half in halves]
    deviation = min(float(np.median(np.abs(half - np.median(half)))) for half in halves)
    # Of normal noise: 1.4826 median deviations are its standard deviation, 1.2533 of those over the root of the count
    # the error of a median.
    error = 1.2533 * 1.4826 * deviation * (2 / middle) ** 0.5
    return bool(abs(medians[1] - medians[0]) <= max(share * float(np.median(seconds)), 3 * error))


def first_steady_step(seconds: Sequence[float], policy: Policy) -> int | None:
    """How many steps to discard: up to the first behind which two windows in a row are level; None if there is none."""
    size = 2 * policy.window_steps
    last = min(len(seconds) - size, policy.max_warmup_steps)
    for first in range(policy.min_warmup_steps, last + 1):
        if is_level(seconds[first : first + size], share=policy.steady_share):
            return first
    return None


def warmup_ends(seconds: Sequence[float], policy: Policy) -> bool:
    """Whether no more steps are needed to say which are discarded."""
    return first_steady_step(seconds, policy) is not None or len(seconds) >= _longest_warmup(policy)


def num_discarded(seconds: Sequence[float], policy: Policy) -> int:
    """How many of the steps so far are warm-up; where they are not steady (yet), all but the last two windows."""
    steady = first_steady_step(seconds, policy)
    if steady is not None:
        return steady
    kept = min(2 * policy.window_steps, max(len(seconds) - policy.min_warmup_steps, 1))
    return max(len(seconds) - kept, 0)


def _longest_warmup(policy: Policy) -> int:
    return policy.max_warmup_steps + 2 * policy.window_steps


def is_enough(seconds: Sequence[float], policy: Policy) -> bool:
    """Whether as many steps are measured as the noise needs, or as many as there may be.

    Halves of few steps often differ by chance: before a trial is said to drift, more of it is seen.
    """
    if len(seconds) >= policy.max_steps:
        return True
    if len(seconds) < policy.min_steps or is_noisy(seconds, policy):
        return False
    return is_level(seconds, share=policy.steady_share)


def is_noisy(seconds: Sequence[float], policy: Policy) -> bool:
    """Whether the median's interval is wider than wanted."""
    interval = correlated_median_interval(seconds)
    return interval.high - interval.low > policy.interval_share * interval.value


def is_clearly_worse(seconds: Sequence[float], best_seconds: float | None, policy: Policy) -> bool:
    """Whether the whole interval of the median lies far above the best so far."""
    if best_seconds is None or len(seconds) < policy.window_steps:
        return False
    return correlated_median_interval(seconds).low > policy.give_up_factor * best_seconds


def next_run(seconds: Sequence[float], spent_seconds: float, policy: Policy) -> int:
    """How many more steps to take, after the warm-up: no more than the budget has time for; 0 if it is spent."""
    left = (policy.budget_seconds - spent_seconds) / float(np.median(seconds))
    # Of each run the first step is taken and not counted.
    return min(policy.steps_per_run, policy.max_steps - len(seconds), max(int(left) - 1, 0))


def exposed_seconds(step_seconds: float, compute_seconds: float) -> float:
    """Exposed communication: what of a step the compute alone does not explain.

    `compute_seconds` is what one step takes on one rank without any other: the model spec's `step_seconds`, which a
    replay sleeps and a profile measured on one process by itself. So where ranks share processors, as those of one
    node do, what they take from one another counts as exposed too.
    """
    return max(step_seconds - compute_seconds, 0.0)


class Tally:
    """What one contestant's runs came to, run after run.

    The step that begins a run is left out, for it starts on idle links, with nobody ahead and nobody late; not so in
    the run that begins a warm-up, whose first steps are discarded anyway.
    """

    def __init__(self) -> None:
        self._runs: list[Samples] = []
        self._begins_warmup: list[bool] = []
        self._ranks: list[list[float]] = []

    def add(self, samples: Samples, *, begins_warmup: bool) -> None:
        self._runs.append(samples)
        self._begins_warmup.append(begins_warmup)
        if not self._ranks:
            self._ranks = [[] for _ in samples.step_seconds]
        for rank, seconds in zip(self._ranks, samples.step_seconds, strict=True):
            rank.extend(seconds if begins_warmup else seconds[1:])

    @property
    def seconds(self) -> tuple[float, ...]:
        """What each step took, those left out not among them."""
        return seconds_of_steps(self._ranks)

    @property
    def peak_memory_bytes(self) -> tuple[int, ...]:
        """Of each rank."""
        return peak_memory_bytes(self._runs)

    @property
    def spent_seconds(self) -> float:
        return sum(map(run_seconds, self._runs))

    def measurement(
        self,
        *,
        num_warmup_steps: int,
        interval: Interval,
        flags: Sequence[Flag],
        policy: Policy,
        compute_seconds: float | None,
    ) -> Measurement:
        """The measurement of all steps after the warm-up. What they cost is that of the runs after its beginning."""
        flagged = zip(self._runs, self._begins_warmup, strict=True)
        runs = [run for run, begins_warmup in flagged if not begins_warmup] or self._runs
        num_steps = sum(len(run.step_seconds[0]) for run in runs)
        share = cpu_share(runs)
        busy: tuple[Flag, ...] = ("busy_cpu",) if share > policy.max_cpu_share else ()
        return Measurement(
            step_seconds=tuple(tuple(seconds[num_warmup_steps:]) for seconds in self._ranks),
            median_seconds=interval.value,
            low_seconds=interval.low,
            high_seconds=interval.high,
            num_warmup_steps=num_warmup_steps,
            peak_memory_bytes=self.peak_memory_bytes,
            cpu_share=share,
            bytes_sent=mean_bytes([run.bytes_sent for run in runs], num_steps),
            bytes_received=mean_bytes([run.bytes_received for run in runs], num_steps),
            exposed_seconds=None if compute_seconds is None else exposed_seconds(interval.value, compute_seconds),
            flags=(*busy, *flags),
        )


def measure(
    service: Service,
    contestant: Contestant,
    policy: Policy = DEFAULT_POLICY,
    *,
    best_seconds: float | None = None,
    compute_seconds: float | None = None,
) -> Measurement:
    """Measure one contestant on a service, as long as the policy says. What fails there raises `TrialFailed`.

    `best_seconds` is the best median so far, `compute_seconds` what a step takes without communication.
    """
    service = PeriodService(service)
    service.prepare(contestant)
    # What takes its time is whole periods, of which the tally has the mean step.
    policy = replace(policy, budget_seconds=policy.budget_seconds / service.steps_each(contestant.name))
    try:
        tally = Tally()
        stopped_early = False
        for num_steps in _runs(tally, policy):
            tally.add(service.run(contestant.name, num_steps), begins_warmup=not tally.spent_seconds)
            warmed = tally.seconds[num_discarded(tally.seconds, policy) :]
            if is_clearly_worse(warmed, best_seconds, policy):
                stopped_early = True
                break
    finally:
        service.release(contestant.name)
    discarded = num_discarded(tally.seconds, policy)
    measured = tally.seconds[discarded:]
    return tally.measurement(
        num_warmup_steps=discarded,
        interval=correlated_median_interval(measured),
        flags=doubts(tally.seconds, policy, stopped_early=stopped_early),
        policy=policy,
        compute_seconds=compute_seconds,
    )


def warm_up(service: Service, name: str, policy: Policy = DEFAULT_POLICY) -> Tally:
    """Run a prepared contestant until its steps are steady, or for the longest warm-up."""
    tally = Tally()
    for num_steps in _warmup_runs(tally, policy):
        tally.add(service.run(name, num_steps), begins_warmup=not tally.spent_seconds)
    return tally


def doubts(seconds: Sequence[float], policy: Policy, *, stopped_early: bool = False) -> tuple[Flag, ...]:
    """The flags of a trial's steps, warm-up included."""
    measured = seconds[num_discarded(seconds, policy) :]
    found: list[Flag] = []
    if first_steady_step(seconds, policy) is None and not stopped_early:
        found.append("not_steady")
    if len(measured) > 1 and not is_level(measured, share=policy.steady_share):
        found.append("drift")
    if stopped_early:
        found.append("stopped_early")
    elif is_noisy(measured, policy):
        found.append("noisy")
    return tuple(found)


def _warmup_runs(tally: Tally, policy: Policy) -> Iterator[int]:
    """The numbers of steps to run until the warm-up is over or the budget spent."""
    fewest = policy.min_warmup_steps + 2 * policy.window_steps
    # Each further run costs a step that is not counted; where many are needed a bad trial may end before all are taken.
    yield fewest if fewest <= policy.steps_per_run else fewest - policy.window_steps
    while not warmup_ends(tally.seconds, policy) and tally.spent_seconds < policy.budget_seconds:
        yield policy.window_steps + 1


def _runs(tally: Tally, policy: Policy) -> Iterator[int]:
    """The numbers of steps to run until nothing more is to be measured."""
    yield from _warmup_runs(tally, policy)
    while True:
        measured = tally.seconds[num_discarded(tally.seconds, policy) :]
        num_steps = next_run(measured, tally.spent_seconds, policy)
        if is_enough(measured, policy) or num_steps == 0:
            return
        yield num_steps + 1
