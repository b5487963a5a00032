"""Compares contestants: prepares them all, measures them in turn in many rounds, and gives ratios with intervals.

In each round every contestant takes a block of steps, in an order drawn at random for the round. So drifts affect all
contestants alike, and no contestant gains by its position. The number of rounds is fixed before the first round and
does not depend on the results: stopping when the results look good would find differences where there are none.
Some contestants may be stopped when their results look bad. They still count as compared.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from autosync import units
from autosync.datasets.schema import Failure, Measurement
from autosync.errors import OperationError
from autosync.trials.comparison import Comparison, confidence_of_each, steps_in_words
from autosync.trials.contestant import Contestant
from autosync.trials.outages import Outages
from autosync.trials.periods import PeriodService
from autosync.trials.policy import (
    DEFAULT_POLICY,
    Policy,
    PolicyOfSamples,
    Tally,
    doubts,
    first_steady_step,
    policy_of_samples,
    warm_up,
)
from autosync.trials.samples import Service
from autosync.trials.service import TrialFailed
from autosync.trials.statistics import Centre, blocked_interval, centre_of, min_rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """The amount of measurement: `num_steps` of the fastest contestant in `num_rounds` rounds; fewer on a small budget.

    Even with the smallest budget, there are as many rounds as the intervals need (6 for two contestants), with one step
    each besides the uncounted step that starts each block. `least_difference` is the share below which a difference
    does not count: even two copies of one strategy, each with its own buffers and connections, differ by some tenths of
    a percent.
    """

    num_steps: int = 60
    num_rounds: int = 12
    budget_seconds: float = 120.0
    least_difference: float = 0.005

    def __post_init__(self) -> None:
        if self.num_steps < 1 or self.num_rounds < 1:
            raise ValueError(f"{self.num_steps} steps in {self.num_rounds} rounds (1 or more of both)")
        if self.budget_seconds <= 0 or not 0 <= self.least_difference < 1:
            raise ValueError("the budget is above 0, the least difference a share from 0 to below 1")


DEFAULT_DESIGN = Design()

NUM_ALONE = 2
"""The steps of a contestant alone. The optimizer may allocate its state in the first, so the second shows the peak."""

FEWEST_STEPS = 2
"""The fewest steps of a contestant in a round in which the fastest has as many. See `plan_rounds`."""

ROUNDS_TO_STOP, FAR_BEHIND = 3, 1.1
"""After so many rounds, contestants are stopped that took longer than the fastest by this factor in each of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """The number of rounds, and for each contestant the number of steps in a round that count."""

    num_rounds: int
    steps: tuple[int, ...]

    def seconds(self, step_seconds: Sequence[float]) -> float:
        """Return the time of all rounds. Each block begins with a step that is not counted."""
        return self.num_rounds * sum(one * (count + 1) for one, count in zip(step_seconds, self.steps, strict=True))


def compare(
    service: Service,
    contestants: Sequence[Contestant],
    *,
    design: Design = DEFAULT_DESIGN,
    policy: Policy | PolicyOfSamples = DEFAULT_POLICY,
    seed: int = 0,
    compute_seconds: Mapping[str, float] | None = None,
    may_stop: Collection[str] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Measure contestants in turn on a service and compare their step times.

    A contestant that fails is left out; the others are warmed up again and go on. If fewer than two are left, the
    failures are raised as an `OperationError`. `compute_seconds` is the time of a step without communication, by the
    names of contestants. Those of `may_stop` that are far behind the fastest of them are stopped after three rounds.
    """
    names = [contestant.name for contestant in contestants]
    assert len(names) >= 2, "a comparison has two contestants at least"
    assert len(set(names)) == len(names), "contestants have names of their own"
    field = _Field(service, contestants, policy, progress)
    try:
        field.prepare()
        step_seconds = field.step_seconds()
        # Waits for a loader come now and then, so their mean needs all steps.
        plan = plan_rounds(list(step_seconds.values()), design, alike=field.centre == "mean")
        steps, lots = dict(zip(field.names, plan.steps, strict=True)), random.Random(seed)
        for number in range(plan.num_rounds):
            if number == ROUNDS_TO_STOP:
                field.stop_slow(may_stop)
            if number % 4 == 0:
                present = {name: steps[name] for name in field.names}
                left = (plan.num_rounds - number) * sum(step_seconds[name] * (present[name] + 1) for name in present)
                told = f"{steps_in_words(tuple(present.values()))}; about {units.format_time(max(round(left), 1))} left"
                progress(f"round {number + 1} of {plan.num_rounds} ({told})")
            field.run_round(draw_order(field.names, lots), steps)
    finally:
        field.release()
    blocks = {name: field.blocks_of(name) for name in field.names}
    measured = [name for name in names if name not in field.failures]
    return Comparison(
        measurements={name: field.measurement(name, (compute_seconds or {}).get(name)) for name in measured},
        failures=field.failures,
        num_rounds=len(next(iter(blocks.values()))),
        steps_per_round={name: steps[name] for name in blocks},
        blocks=blocks,
        centre=field.centre,
        least_difference=design.least_difference,
    )


def plan_rounds(step_seconds: Sequence[float], design: Design, *, alike: bool = False) -> RoundPlan:
    """Return the rounds for contestants with these step times.

    All contestants take about the same time in a round, so one that is much slower than the fastest has fewer steps, at
    least `FEWEST_STEPS`. Its ratio to the fastest is far from 1 and needs less precision. With `alike`, all have the
    same number of steps. If the budget is too small, there are first fewer steps per round, then fewer rounds.
    """
    needed = min_rounds(confidence_of_each(len(step_seconds) - 1))
    num_rounds = max(needed, min(design.num_rounds, design.num_steps))
    fastest = min(step_seconds)
    for most in range(max(1, design.num_steps // num_rounds), 0, -1):
        fewest = most if alike else min(most, FEWEST_STEPS)
        steps = tuple(max(fewest, round(most * fastest / one)) for one in step_seconds)
        plan = RoundPlan(num_rounds=num_rounds, steps=steps)
        if plan.seconds(step_seconds) <= design.budget_seconds:
            return plan
    num_rounds = max(needed, int(design.budget_seconds / (sum(step_seconds) * 2)))
    return RoundPlan(num_rounds=num_rounds, steps=(1,) * len(step_seconds))


def draw_order(names: Sequence[str], lots: random.Random) -> list[str]:
    """Draw the order of one round. Every order is equally likely, independently of earlier rounds."""
    return lots.sample(list(names), len(names))


class _Field:
    """The contestants that have not failed, and their results so far."""

    def __init__(
        self,
        service: Service,
        contestants: Sequence[Contestant],
        policy: Policy | PolicyOfSamples,
        progress: Callable[[str], None],
    ) -> None:
        self.failures: dict[str, Failure] = {}
        self._service = PeriodService(service)
        self._contestants = {contestant.name: contestant for contestant in contestants}
        self._policy = policy
        self._policies: dict[str, Policy] = {}
        self._progress = progress
        self._outages = Outages()
        self._warmups: dict[str, Tally] = {}
        self._memory: dict[str, tuple[int, ...]] = {}
        self._stopped: set[str] = set()
        self._tallies = {name: Tally() for name in self._contestants}
        self._rounds: list[Mapping[str, tuple[float, ...]]] = []

    @property
    def names(self) -> list[str]:
        return list(self._contestants)

    @property
    def centre(self) -> Centre:
        """Which centre of a block is its time. A loader serves all contestants or none, because they have one task."""
        return next(self._policies[name].centre for name in self._contestants)

    def prepare(self) -> None:
        """Prepare and warm up every contestant; begin again after a failure, which leaves no contestant prepared."""
        while True:
            failed = self._failed_to_prepare()
            if failed is None:
                return
            self._fall_out(*failed)

    def _failed_to_prepare(self) -> tuple[str, TrialFailed] | None:
        for name, contestant in self._contestants.items():
            if name not in self._memory:
                self._progress(f"trying {name} alone")
                try:
                    self._memory[name] = self._try_alone(contestant)
                except TrialFailed as error:
                    return name, error
        for name, contestant in self._contestants.items():
            self._progress(f"warming up {name}")
            try:
                self._service.prepare(contestant)
                steps_each, centre = self._service.steps_each(name), self._service.centre(name)
                self._policies[name] = policy_of_samples(self._policy, steps_each, centre)
                self._warmups[name] = warm_up(self._service, name, self._policies[name])
            except TrialFailed as error:
                return name, error
        return None

    def _try_alone(self, contestant: Contestant) -> tuple[int, ...]:
        """Return the peak memory of each rank with this contestant alone: later, all contestants are in memory."""
        self._service.prepare(contestant)
        samples = self._service.run(contestant.name, NUM_ALONE if self._service.steps_each(contestant.name) == 1 else 1)
        self._service.release(contestant.name)
        return tuple(samples.peak_memory_bytes)

    def _fall_out(self, name: str, error: TrialFailed) -> None:
        """Handle a failure, after which no contestant is prepared.

        Wait and go on if it is excused as a failure of the machines; else leave the contestant out.
        """
        if not self._outages.excuses(name, error):
            self._leave_out(name, error)
            return
        self.release()
        self._progress(f"{name}: {error.message}")
        self._outages.wait(error, self._progress)

    def _leave_out(self, name: str, error: TrialFailed) -> None:
        self.release()
        self.failures[name] = Failure(kind=error.kind, message=error.message)
        del self._contestants[name]
        self._progress(f"{name} is left out: {error.kind}: {error.message}")
        if len(self._contestants) < 2:
            told = "; ".join(f"{one}: {failure.kind}: {failure.message}" for one, failure in self.failures.items())
            raise OperationError(f"fewer than two contestants could be measured ({told})") from error

    def release(self) -> None:
        for name in self._contestants:
            self._service.release(name)

    def step_seconds(self) -> dict[str, float]:
        """Return the time of each contestant's step (or period, if it has periods) at the end of its warm-up."""
        return {
            name: self._service.steps_each(name) * self._warmups[name].latest_seconds(self._policies[name])
            for name in self._contestants
        }

    def run_round(self, order: Sequence[str], num_steps: Mapping[str, int]) -> None:
        """Run a block of each contestant. If one fails, the round does not count, and the others begin it again."""
        taken = {}
        for name in order:
            try:
                # A block begins and ends with idle links. Its first step is not counted: where transfers go on into the
                # next step, the first step has none to wait for. The last step's transfers end before the next block.
                taken[name] = self._service.run(name, num_steps[name] + 1, settle=True)
            except TrialFailed as error:
                self._fall_out(name, error)
                self.prepare()
                self.run_round([other for other in order if other in self._contestants], num_steps)
                return
        self._outages.over()
        for name, samples in taken.items():
            self._tallies[name].add(samples, begins_warmup=False)
        self._rounds.append({name: self._tallies[name].seconds[-num_steps[name] :] for name in order})

    def stop_slow(self, names: Collection[str]) -> None:
        """Stop contestants of these that were far behind the fastest of them in every round so far.

        Each round's order is drawn, so a load that comes and goes hardly makes the same one slow each time. But a few
        rounds say little of waits for a loader.
        """
        if self.centre == "mean":
            return
        taken = {
            name: [float(centre_of(block, self.centre)) for block in self.blocks_of(name)]
            for name in names
            if name in self._contestants
        }
        fastest = min(taken.values(), key=statistics.fmean, default=[])
        for name, seconds in taken.items():
            if all(one > FAR_BEHIND * best for one, best in zip(seconds, fastest, strict=True)):
                self._progress(f"{name} is stopped: it is far behind")
                self._service.release(name)
                self._stopped.add(name)
                del self._contestants[name]

    def blocks_of(self, name: str) -> tuple[tuple[float, ...], ...]:
        """Return the steps of a contestant in each round in which it took part."""
        return tuple(one[name] for one in self._rounds if name in one)

    def measurement(self, name: str, compute_seconds: float | None) -> Measurement:
        """Return the measurement of one contestant; the flag for unsteady steps is set by its warm-up."""
        tally, warmup, policy = self._tallies[name], self._warmups[name].seconds, self._policies[name]
        steady = first_steady_step(warmup, policy) is not None
        measured = tally.measurement(
            num_warmup_steps=0,
            interval=blocked_interval(self.blocks_of(name), centre=policy.centre),
            flags=[flag for flag in doubts(tally.seconds, policy) if flag == "drift"],
            policy=policy,
            compute_seconds=compute_seconds,
        )
        flags = measured.flags if steady else (*measured.flags, "not_steady")
        if name in self._stopped:
            flags = (*flags, "stopped_early")
        memory = self._memory[name]
        return replace(measured, num_warmup_steps=len(warmup), peak_memory_bytes=memory, flags=flags)
