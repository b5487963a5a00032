"""Measures contestants whose steps differ: a whole period of steps counts as one sample, their mean.

Steps differ for two reasons. If parameters are averaged only in every k-th step, most steps contain no average. And the
workers of a loader read at the same time and are done at the same time: one step waits for all of them, and the next
steps find their batches ready. The median of single steps would be the time of a step without the average or the wait,
which would seem to take no time.

All steps of a sample belong to one run. So a slow first step is in the first sample alone, and no two blocks of a
comparison share a step.

**Where blocks begin.** A loader goes on where it was paused, and at the end of an epoch a step waits for a batch of the
next one. The first steps of a block do not count. If each block were as long, these might be the same steps of all
epochs, and their waits in no figure. So blocks begin with a few steps more or less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autosync.strategy.bundle import Bundle, load_bundle
from autosync.strategy.representation import Strategy
from autosync.trials.contestant import Contestant
from autosync.trials.failures import TrialFailed
from autosync.trials.measured_inputs import Answers, joined_sums
from autosync.trials.samples import Samples, Service, cpu_share, mean_bytes, peak_memory_bytes
from autosync.trials.statistics import Centre

MOST_STEPS = 64
"""The most steps of a sample. Longer averaging periods are refused: no trial is long enough for several of them. If
workers need more steps for their turns, a sample is shorter than a turn, and may have one wait too many or too few."""

_GOLDEN_RATIO = (math.sqrt(5) - 1) / 2

STEPS_AT_ONCE = 8
"""The steps of a request, or those of one sample if that is longer: requests to ranks have a deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodSamples:
    """`Samples` of one contestant in which each period counts as one step.

    The seconds of a period are the mean of its steps. Bytes and sums about the input are those of a mean step times the
    number of periods.
    """

    step_seconds: tuple[tuple[float, ...], ...]
    cpu_share: float
    bytes_sent: tuple[int, ...] | None
    bytes_received: tuple[int, ...] | None
    peak_memory_bytes: tuple[int, ...]
    inputs: Answers | None = None


class PeriodService:
    """A `Service` that measures whole periods in place of steps. The period of most contestants is one step."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._steps_each: dict[str, int] = {}
        self._centres: dict[str, Centre] = {}
        self._lags: dict[str, int] = {}
        self._num_blocks: dict[str, int] = {}

    def steps_each(self, name: str) -> int:
        """Return the number of steps in a sample of a prepared contestant."""
        return self._steps_each[name]

    def centre(self, name: str) -> Centre:
        """Return which centre of a prepared contestant's samples is its time."""
        return self._centres[name]

    def prepare(self, contestant: Contestant) -> None:
        num_turn_steps = self._service.prepare(contestant) or 0
        strategy = _strategy_of(contestant)
        period = 1 if strategy is None else strategy_period(strategy)
        if period > MOST_STEPS:
            self._service.release(contestant.name)
            what = f"{contestant.name} does not do the same again before {period} steps are over"
            raise TrialFailed("refused", f"{what}: of periods of more than {MOST_STEPS} no trial sees enough")
        self._steps_each[contestant.name] = steps_of_sample(period, max(num_turn_steps, 1))
        self._centres[contestant.name] = "mean" if num_turn_steps else "median"
        self._lags[contestant.name] = 0 if strategy is None else strategy_lag(strategy)
        self._num_blocks[contestant.name] = 0

    def run(self, name: str, num_steps: int, *, settle: bool = False) -> Samples:
        """Run samples of a contestant. With `settle`, it began with idle links, and ends with idle links again."""
        steps_each = self._steps_each[name]
        # What may come late has nothing to wait for in the first steps after idle links: they show compute alone.
        if settle and (num_lead_steps := self._lags[name] + self._next_shift(name)):
            self._service.run(name, num_lead_steps)
        if steps_each == 1:
            return self._service.run(name, num_steps, settle=settle)
        at_once = max(STEPS_AT_ONCE // steps_each, 1)
        counts = [min(at_once, num_steps - begin) for begin in range(0, num_steps, at_once)]
        runs = [
            self._service.run(name, count * steps_each, settle=settle and number == len(counts))
            for number, count in enumerate(counts, start=1)
        ]
        return _joined(runs, steps_each)

    def _next_shift(self, name: str) -> int:
        """Return by how many steps the next block begins late: see the note on where blocks begin."""
        if self._centres[name] == "median":
            return 0
        number, self._num_blocks[name] = self._num_blocks[name], self._num_blocks[name] + 1
        # Multiples of the golden ratio are spread evenly, however many there are.
        return int(number * _GOLDEN_RATIO % 1 * 2 * self._steps_each[name])

    def release(self, name: str) -> None:
        for known in (self._steps_each, self._centres, self._lags, self._num_blocks):
            known.pop(name, None)
        self._service.release(name)


def _strategy_of(contestant: Contestant) -> Strategy | None:
    """Return a contestant's strategy; None for stock DDP."""
    bundle = contestant.bundle
    if bundle is None:
        return None
    return (bundle if isinstance(bundle, Bundle) else load_bundle(bundle)).strategy


def strategy_period(strategy: Strategy) -> int:
    """Return the number of steps after which a strategy's messages repeat."""
    return math.lcm(*(message.synchroniser.period for message in strategy.messages))


def strategy_lag(strategy: Strategy) -> int:
    """Return by how many steps a strategy's messages may come late at most."""
    return max((message.synchroniser.lag for message in strategy.messages), default=0)


def turn_steps(num_workers: int, accumulation_steps: int) -> int:
    """Return the number of steps after which all workers of a loader have given equally many batches.

    Each step takes `accumulation_steps` batches. Without workers the number is 1.
    """
    num_turns = max(num_workers, 1)
    return num_turns // math.gcd(num_turns, accumulation_steps)


def steps_of_sample(period: int, num_turn_steps: int) -> int:
    """Return the number of steps of a sample: whole periods of the messages, and whole turns of a loader's workers.

    If both together need more than `MOST_STEPS`, as many periods as fit.
    """
    together = math.lcm(period, num_turn_steps)
    return together if together <= MOST_STEPS else period * max(MOST_STEPS // period, 1)


def _joined(runs: Sequence[Samples], steps_each: int) -> PeriodSamples:
    ranks = zip(*(run.step_seconds for run in runs), strict=True)
    return PeriodSamples(
        step_seconds=tuple(_means([seconds for run in of_rank for seconds in run], steps_each) for of_rank in ranks),
        cpu_share=cpu_share(runs),
        # Divided by the number of periods, these are the bytes of a step.
        bytes_sent=mean_bytes([run.bytes_sent for run in runs], steps_each),
        bytes_received=mean_bytes([run.bytes_received for run in runs], steps_each),
        peak_memory_bytes=peak_memory_bytes(runs),
        inputs=_mean_inputs([run.inputs for run in runs], steps_each),
    )


def _means(seconds: Sequence[float], steps_each: int) -> tuple[float, ...]:
    return tuple(sum(seconds[begin : begin + steps_each]) / steps_each for begin in range(0, len(seconds), steps_each))


def _mean_inputs(inputs: Sequence[Answers | None], steps_each: int) -> Answers | None:
    known = [of_run for of_run in inputs if of_run is not None]
    if len(known) < len(inputs):
        return None
    return [joined_sums(of_rank, 1 / steps_each) for of_rank in zip(*known, strict=True)]
