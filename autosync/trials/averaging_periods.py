"""Measures strategies whose steps differ: a whole period of steps counts as one sample.

If parameters are averaged only in every k-th step, most steps contain no average, and the median of single steps would
be the time of a step without one: averages would seem to take no time. So k steps are measured as one sample, their
mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autosync.strategy.bundle import Bundle, load_bundle
from autosync.trials.contestant import Contestant
from autosync.trials.failures import TrialFailed
from autosync.trials.measured_inputs import Answers
from autosync.trials.samples import Samples, Service, cpu_share, mean_bytes, peak_memory_bytes

MOST_STEPS = 64
"""The longest period that is measured: no trial is long enough for several longer periods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodSamples:
    """`Samples` of one contestant in which each period counts as one step.

    The seconds of a period are the mean of its steps. Bytes are the mean of a step times the number of periods. Nothing
    is said of the input.
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
        self._periods: dict[str, int] = {}

    def steps_each(self, name: str) -> int:
        """Return the number of steps in a period of a prepared contestant."""
        return self._periods[name]

    def prepare(self, contestant: Contestant) -> None:
        self._service.prepare(contestant)
        period = period_of(contestant)
        if period > MOST_STEPS:
            self._service.release(contestant.name)
            what = f"{contestant.name} does not do the same again before {period} steps are over"
            raise TrialFailed("refused", f"{what}: of periods of more than {MOST_STEPS} no trial sees enough")
        self._periods[contestant.name] = period

    def run(self, name: str, num_steps: int, *, settle: bool = False) -> Samples:
        period = self._periods[name]
        if period == 1:
            return self._service.run(name, num_steps, settle=settle)
        # Each period is a separate run, because requests to ranks have a deadline.
        runs = [
            self._service.run(name, period, settle=settle and number == num_steps - 1) for number in range(num_steps)
        ]
        return _joined(runs, period)

    def release(self, name: str) -> None:
        self._periods.pop(name, None)
        self._service.release(name)


def period_of(contestant: Contestant) -> int:
    """Return the number of steps after which the contestant's steps repeat."""
    bundle = contestant.bundle
    if bundle is None:
        return 1
    if not isinstance(bundle, Bundle):
        bundle = load_bundle(bundle)
    synchronisers = (message.synchroniser for message in bundle.strategy.messages)
    return math.lcm(*(synchroniser.period for synchroniser in synchronisers))


def _joined(runs: Sequence[Samples], period: int) -> PeriodSamples:
    ranks = zip(*(run.step_seconds for run in runs), strict=True)
    return PeriodSamples(
        step_seconds=tuple(tuple(sum(steps) / period for steps in rank) for rank in ranks),
        cpu_share=cpu_share(runs),
        # Divided by the number of periods, these are the bytes of a step.
        bytes_sent=mean_bytes([run.bytes_sent for run in runs], period),
        bytes_received=mean_bytes([run.bytes_received for run in runs], period),
        peak_memory_bytes=peak_memory_bytes(runs),
    )
