"""The rules for the length of measurements and for doubtful ones, and `measure`, which follows these rules.

Warm-up ends when steps are steady. Then steps are measured until their time is known well enough, the budget is
spent, or the trial is clearly worse than the best so far. Every rule is a pure function of the step times so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autosync.datasets.schema import Flag, Measurement, seconds_of_steps
from autosync.trials.contestant import Contestant
from autosync.trials.measured_inputs import mean_input
from autosync.trials.periods import PeriodService
from autosync.trials.samples import Samples, Service, cpu_share, mean_bytes, peak_memory_bytes, run_seconds
from autosync.trials.statistics import Centre, Interval, centre_of, correlated_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The limits on the measurement of one contestant.

    At least `min_warmup_steps` are discarded: stock DDP rebuilds its buckets after the first step. Then steps are
    measured until the 95 % interval of their `centre` is narrower than `interval_share` of it and the later half is as
    fast as the earlier half; or until `max_steps` are measured or `budget_seconds` are spent, with warm-up. A trial
    whose interval lies above `give_up_factor` times the best so far is stopped. With `glance_steps`, a trial is stopped
    after so many steps if each of them took longer than `glance_factor` times the best so far. The centre is the mean
    for steps that wait for a loader.
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
    glance_steps: int = 0
    glance_factor: float = 1.5
    centre: Centre = "median"

    def __post_init__(self) -> None:
        if not 2 <= self.min_warmup_steps <= self.max_warmup_steps:
            raise ValueError(f"{self.min_warmup_steps} to {self.max_warmup_steps} warm-up steps (2 or more)")
        if not 1 <= self.min_steps <= self.max_steps:
            raise ValueError(f"{self.min_steps} to {self.max_steps} measured steps (1 or more)")
        if self.window_steps < 2 or self.steps_per_run < 1:
            raise ValueError("a window has 2 or more steps, a run 1 or more")
        if min(self.steady_share, self.interval_share, self.budget_seconds) <= 0 or self.give_up_factor < 1:
            raise ValueError("shares and the budget are above 0, the factor for giving up is 1 or more")
        if not 0 <= self.glance_steps <= self.min_warmup_steps or self.glance_factor < 1:
            raise ValueError("the first glance has no more steps than the shortest warm-up, and a factor of 1 or more")


DEFAULT_POLICY = Policy()

PolicyOfSamples = Callable[[int], Policy]
"""Returns the policy of a contestant from the number of steps in each of its samples (see periods)."""


def policy_of_samples(policy: Policy | PolicyOfSamples, steps_each: int, centre: Centre = "median") -> Policy:
    """Return the policy for samples of so many steps each, with its budget in seconds of the samples' mean steps.

    A tally knows only the mean step of each sample, so that is what spends the budget.
    """
    chosen = policy if isinstance(policy, Policy) else policy(steps_each)
    return replace(chosen, budget_seconds=chosen.budget_seconds / steps_each, centre=centre)


def is_level(seconds: Sequence[float], *, share: float) -> bool:
    """Whether the later half of the steps is as fast as the earlier half.

    The halves' medians may differ by `share` of the whole median, or by three times the error that the scatter of the
    steps gives them, whichever is more. Medians and median deviations are used, so one outlier among the three or four
    steps of a half changes nothing. The scatter is taken from the quieter half: the other half has a wide scatter
    merely if slow steps end within it.
    """
    middle = len(seconds) // 2
    halves = (np.asarray(seconds[:middle]), np.asarray(seconds[-middle:]))
    medians = [float(np.median(half)) for half in halves]
    deviation = min(float(np.median(np.abs(half - np.median(half)))) for half in halves)
    # For normal noise, the standard deviation is 1.4826 median deviations, and the error of a median is 1.2533 standard
    # deviations divided by the root of the count.
    error = 1.2533 * 1.4826 * deviation * (2 / middle) ** 0.5
    return bool(abs(medians[1] - medians[0]) <= max(share * float(np.median(seconds)), 3 * error))


def first_steady_step(seconds: Sequence[float], policy: Policy) -> int | None:
    """Return the number of steps before the first two consecutive windows that are level; None if there are none."""
    size = 2 * policy.window_steps
    last = min(len(seconds) - size, policy.max_warmup_steps)
    for first in range(policy.min_warmup_steps, last + 1):
        if is_level(seconds[first : first + size], share=policy.steady_share):
            return first
    return None


def warmup_ends(seconds: Sequence[float], policy: Policy) -> bool:
    """Whether enough steps are done to decide which of them are discarded."""
    return first_steady_step(seconds, policy) is not None or len(seconds) >= _longest_warmup(policy)


def num_discarded(seconds: Sequence[float], policy: Policy) -> int:
    """Return how many of the steps so far are warm-up.

    If they are not steady yet, all but the last two windows are; if they were not steady in time, the longest warm-up.
    """
    steady = first_steady_step(seconds, policy)
    if steady is not None:
        return steady
    kept = min(2 * policy.window_steps, max(len(seconds) - policy.min_warmup_steps, 1))
    return min(max(len(seconds) - kept, 0), policy.max_warmup_steps)


def _longest_warmup(policy: Policy) -> int:
    return policy.max_warmup_steps + 2 * policy.window_steps


def is_enough(seconds: Sequence[float], policy: Policy) -> bool:
    """Whether the noise needs no more steps, or `max_steps` are measured.

    Halves of few steps often differ by chance, so more steps are measured before a trial counts as drifting.
    """
    if len(seconds) >= policy.max_steps:
        return True
    if len(seconds) < policy.min_steps or is_noisy(seconds, policy):
        return False
    return is_level(seconds, share=policy.steady_share)


def is_noisy(seconds: Sequence[float], policy: Policy) -> bool:
    """Whether the interval of the centre is wider than the policy allows."""
    interval = correlated_interval(seconds, centre=policy.centre)
    return interval.high - interval.low > policy.interval_share * interval.value


def is_clearly_worse(seconds: Sequence[float], best_seconds: float | None, policy: Policy) -> bool:
    """Whether the whole interval of the centre lies above `give_up_factor` times the best so far."""
    if best_seconds is None or len(seconds) < policy.window_steps:
        return False
    return correlated_interval(seconds, centre=policy.centre).low > policy.give_up_factor * best_seconds


def is_slow_at_a_glance(seconds: Sequence[float], best_seconds: float | None, policy: Policy) -> bool:
    """Whether the first steps of a trial, with its warm-up, already show that it is far slower than the best so far."""
    if best_seconds is None or not 0 < len(seconds) <= policy.glance_steps:
        return False
    return min(seconds) > policy.glance_factor * best_seconds


def next_run(seconds: Sequence[float], spent_seconds: float, policy: Policy) -> int:
    """Return the number of steps of the next run after the warm-up, within the budget; 0 if the budget is spent."""
    left = (policy.budget_seconds - spent_seconds) / float(centre_of(seconds, policy.centre))
    # The first step of each run is taken but not counted.
    return min(policy.steps_per_run, policy.max_steps - len(seconds), max(int(left) - 1, 0))


def exposed_seconds(step_seconds: float, compute_seconds: float) -> float:
    """Return the exposed communication: the part of a step's time that compute does not explain.

    `compute_seconds` is the compute of a step on its busiest rank: from the model spec, whose times a replay sleeps and
    a profile measured on a single process. So if ranks share processors, as the ranks of one node do, the time that
    they take from one another counts as exposed too.
    """
    return max(step_seconds - compute_seconds, 0.0)


EARLY = 0.1
"""The share of a run's first step by which a rank is through it early. Below that, the difference may be noise."""


def _after_first(step_seconds: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return each rank's steps after the first of a run, which all ranks began together.

    A rank that computes fast may be through the first step early, if transfers go on into the next one. Its second step
    then contains the wait for the slower ranks' first one. From the third step on, ranks are where they are in a long
    run. So the second step takes for all ranks what it takes for the last one.
    """
    rest = [list(row[1:]) for row in step_seconds]
    firsts = [row[0] for row in step_seconds]
    if rest[0] and min(firsts) < (1 - EARLY) * max(firsts):
        second = max(row[0] + row[1] for row in step_seconds) - max(firsts)
        return [[second, *row[1:]] for row in rest]
    return rest


class Tally:
    """Collects the samples of one contestant's runs.

    The first step of a run is left out, because it starts with idle links and all ranks at the same point. It is kept
    in the run that begins a warm-up, whose first steps are discarded anyway. Where some ranks are through it
    early, the second is timed on the last rank.
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
        kept = samples.step_seconds if begins_warmup else _after_first(samples.step_seconds)
        for rank, seconds in zip(self._ranks, kept, strict=True):
            rank.extend(seconds)

    @property
    def seconds(self) -> tuple[float, ...]:
        """The time of each step, without the steps that are left out."""
        return seconds_of_steps(self._ranks)

    def latest_seconds(self, policy: Policy) -> float:
        """Return the time of a step at the end of the runs so far."""
        return float(centre_of(self.seconds[-policy.window_steps :], policy.centre))

    @property
    def peak_memory_bytes(self) -> tuple[int, ...]:
        """The peak memory of each rank."""
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
        """Return the measurement of all steps after the warm-up.

        Bytes and the processor share come from all runs except the run that begins the warm-up.
        """
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
            input=mean_input([run.inputs for run in runs], num_steps),
            flags=(*busy, *flags),
        )


def measure(
    service: Service,
    contestant: Contestant,
    policy: Policy | PolicyOfSamples = DEFAULT_POLICY,
    *,
    best_seconds: float | None = None,
    compute_seconds: float | None = None,
) -> Measurement:
    """Measure one contestant on a service for as long as the policy says; raise `TrialFailed` if it fails.

    `best_seconds` is the best time of a step so far, `compute_seconds` the time of a step without communication.
    """
    service = PeriodService(service)
    service.prepare(contestant)
    try:
        name = contestant.name
        limits = policy_of_samples(policy, service.steps_each(name), service.centre(name))
        tally = Tally()
        stopped_early = False
        for num_steps in _runs(tally, limits):
            tally.add(service.run(name, num_steps), begins_warmup=not tally.spent_seconds)
            warmed = tally.seconds[num_discarded(tally.seconds, limits) :]
            is_slow = is_slow_at_a_glance(tally.seconds, best_seconds, limits)
            if is_slow or is_clearly_worse(warmed, best_seconds, limits):
                stopped_early = True
                break
    finally:
        service.release(contestant.name)
    discarded = num_discarded(tally.seconds, limits)
    measured = tally.seconds[discarded:]
    return tally.measurement(
        num_warmup_steps=discarded,
        interval=correlated_interval(measured, centre=limits.centre),
        flags=doubts(tally.seconds, limits, stopped_early=stopped_early),
        policy=limits,
        compute_seconds=compute_seconds,
    )


def warm_up(service: Service, name: str, policy: Policy = DEFAULT_POLICY) -> Tally:
    """Run a prepared contestant until its steps are steady, for the longest warm-up, or until the budget is spent."""
    tally = Tally()
    for num_steps in _warmup_runs(tally, policy):
        tally.add(service.run(name, num_steps), begins_warmup=not tally.spent_seconds)
    return tally


def doubts(seconds: Sequence[float], policy: Policy, *, stopped_early: bool = False) -> tuple[Flag, ...]:
    """Return the flags of a trial's steps, which include the warm-up."""
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
    """Yield the number of steps of each run, until the warm-up is over or the budget is spent."""
    fewest = policy.min_warmup_steps + 2 * policy.window_steps
    # Each further run costs a step that is not counted. If many steps are needed, a bad trial may end before the last.
    first = fewest if fewest <= policy.steps_per_run else fewest - policy.window_steps
    if policy.glance_steps:
        yield policy.glance_steps
        first += 1 - policy.glance_steps
    yield first
    while not warmup_ends(tally.seconds, policy) and tally.spent_seconds < policy.budget_seconds:
        yield policy.window_steps + 1


def _runs(tally: Tally, policy: Policy) -> Iterator[int]:
    """Yield the number of steps of each run, until the measurement is complete."""
    yield from _warmup_runs(tally, policy)
    while True:
        measured = tally.seconds[num_discarded(tally.seconds, policy) :]
        num_steps = next_run(measured, tally.spent_seconds, policy)
        if is_enough(measured, policy) or num_steps == 0:
            return
        yield num_steps + 1
