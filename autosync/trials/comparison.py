"""The result of a comparison: measurements, and ratios of speeds with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from autosync.datasets.measured_input import MeasuredInput
from autosync.datasets.schema import Failure, Measurement
from autosync.frames import sentence_and_table
from autosync.trials.statistics import CONFIDENCE, Centre, Interval, round_ratio

if TYPE_CHECKING:
    import pandas as pd

Blocks = Mapping[str, Sequence[Sequence[float]]]
"""For each contestant and each round, the seconds of its steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The ratio of two contestants' speeds: how many times as fast `name` is as `other`."""

    name: str
    other: str
    speedup: Interval
    least_difference: float

    @property
    def verdict(self) -> Literal["faster", "slower", "no difference found"]:
        """The verdict: a difference counts if the whole interval lies beyond 1 by more than the least difference."""
        if self.speedup.low > 1 + self.least_difference:
            return "faster"
        if self.speedup.high < 1 / (1 + self.least_difference):
            return "slower"
        return "no difference found"

    def __str__(self) -> str:
        interval = f"({self.speedup.low:.3f} to {self.speedup.high:.3f})"
        if self.verdict == "no difference found":
            return f"no difference found between {self.name} and {self.other} {interval}"
        return f"{self.name} is {self.speedup.value:.3f} times as fast as {self.other} {interval}"


def speedup_frame(measurements: Mapping[str, Measurement], speedups: Mapping[str, Interval]) -> pd.DataFrame:
    """Return a row for each contestant. Times are milliseconds of a step; a contestant may have no speed-up."""
    import pandas as pd

    measured = list(measurements.values())
    ratios = [speedups.get(name) for name in measurements]
    return pd.DataFrame(
        {
            "contestant": list(measurements),
            "step_ms": [one.median_seconds * 1e3 for one in measured],
            "low_ms": [one.low_seconds * 1e3 for one in measured],
            "high_ms": [one.high_seconds * 1e3 for one in measured],
            "speedup": [None if one is None else one.value for one in ratios],
            "speedup_low": [None if one is None else one.low for one in ratios],
            "speedup_high": [None if one is None else one.high for one in ratios],
            "flags": [", ".join(one.flags) for one in measured],
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of a comparison.

    `measurements`, `steps_per_round` and `blocks` are by contestant, in the given order. Contestants that were stopped
    have a measurement alone. `failures` are of contestants that could not be measured. `centre` says whether the time
    of a block is its median or its mean.
    """

    measurements: Mapping[str, Measurement]
    failures: Mapping[str, Failure]
    num_rounds: int
    steps_per_round: Mapping[str, int]
    blocks: Blocks = field(repr=False)
    centre: Centre
    least_difference: float

    @property
    def rounds_in_words(self) -> str:
        """What was measured, such as "12 rounds of 2 to 5 steps of each, in turn"."""
        return f"{self.num_rounds} rounds of {steps_in_words(tuple(self.steps_per_round.values()))}, in turn"

    @property
    def ratios(self) -> tuple[Ratio, ...]:
        """The ratio of each other contestant to the first, each with its own 95 % interval."""
        return ratios_to_first(self.blocks, self.least_difference, self.centre)

    @property
    def best(self) -> str | None:
        """The contestant that is faster than every other, with 95 % confidence in all these comparisons together."""
        return best_of(self.blocks, self.least_difference, self.centre, confidence=self._confidence)

    @property
    def beats_first(self) -> tuple[str, ...]:
        """The contestants that are faster than the first, with 95 % confidence in all of them together."""
        return faster_than_first(self.blocks, self.least_difference, self.centre, confidence=self._confidence)

    def between(self, name: str, other: str) -> Ratio:
        """Return how many times as fast a contestant is as another, if one was chosen because of these results.

        Such a choice favours lucky results, so the interval has 95 % confidence for all possible choices together.
        """
        return _ratio(self.blocks, name, other, self.least_difference, centre=self.centre, confidence=self._confidence)

    @property
    def _confidence(self) -> float:
        """The confidence of each of several comparisons. Contestants that were stopped count: results chose them."""
        return confidence_of_each(len(self.measurements) - 1)

    def limited(self, loader_seconds: float) -> Comparison:
        """Return the comparison for loaders that take so long for each batch, and are the same for all contestants.

        The step of a contestant that is faster without its waits takes as long as a batch: by turns, it finds batches
        that were read ahead and waits for others, so its own blocks say little.
        """
        faster = [name for name, one in self.measurements.items() if _without_waits(one) < loader_seconds]
        measurements = {name: _at_loader(self.measurements[name], loader_seconds) for name in faster}
        blocks = {
            name: tuple((loader_seconds,) * len(block) for block in of_rounds)
            for name, of_rounds in self.blocks.items()
            if name in faster
        }
        return replace(self, blocks={**self.blocks, **blocks}, measurements={**self.measurements, **measurements})

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each contestant. Speed-ups are over the first; times are milliseconds of a step."""
        return speedup_frame(self.measurements, {ratio.name: ratio.speedup for ratio in self.ratios})

    def _repr_html_(self) -> str:
        return sentence_and_table(". ".join([*map(str, self.ratios), ""]).strip(), self.to_frame())


def steps_in_words(steps: Sequence[int]) -> str:
    """Return how many steps each contestant has in a round, such as "5 steps of each"."""
    fewest, most = min(steps), max(steps)
    if fewest == most:
        return f"{most} step{'' if most == 1 else 's'} of each"
    return f"{fewest} to {most} steps of each"


def ratios_to_first(blocks: Blocks, least_difference: float, centre: Centre = "median") -> tuple[Ratio, ...]:
    """Return the ratio of each other contestant to the first."""
    first, *others = blocks
    return tuple(_ratio(blocks, name, first, least_difference, centre=centre) for name in others)


def faster_than_first(
    blocks: Blocks, least_difference: float, centre: Centre = "median", *, confidence: float
) -> tuple[str, ...]:
    """Return the contestants that are faster than the first, each with this confidence (see `confidence_of_each`)."""
    first, *others = blocks
    ratios = [_ratio(blocks, name, first, least_difference, centre=centre, confidence=confidence) for name in others]
    return tuple(one.name for one in ratios if one.verdict == "faster")


def best_of(blocks: Blocks, least_difference: float, centre: Centre = "median", *, confidence: float) -> str | None:
    """Return the contestant that is faster than each of the others, each with this confidence; or None.

    Let each of the k - 1 comparisons have the confidence 1 - 5 %/(k - 1). If all k contestants are equal, one of them
    beats another by chance with a probability of at most half of 5 %/(k - 1). So the probability that any contestant
    beats all others by chance is at most k/(2k - 2) times 5 %.
    """
    for name in blocks:
        others = [other for other in blocks if other != name]
        ratios = [_ratio(blocks, name, one, least_difference, centre=centre, confidence=confidence) for one in others]
        if all(one.verdict == "faster" for one in ratios):
            return name
    return None


def confidence_of_each(num_comparisons: int) -> float:
    """Return the confidence of each of some comparisons that have 95 % together (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / max(num_comparisons, 1)


def _ratio(
    blocks: Blocks, name: str, other: str, least_difference: float, *, centre: Centre, confidence: float = CONFIDENCE
) -> Ratio:
    speedup = round_ratio(blocks[other], blocks[name], confidence=confidence, centre=centre)
    return Ratio(name=name, other=other, speedup=speedup, least_difference=least_difference)


def _without_waits(measured: Measurement) -> float:
    """Return the time of a mean step, without the wait for input of the rank that waits longest."""
    waits = 0.0 if measured.input is None else max(measured.input.wait_seconds)
    return float(np.mean(measured.step_seconds)) - waits


def _at_loader(measured: Measurement, loader_seconds: float) -> Measurement:
    """Return a measurement whose steps take as long as a loader's batches, because they wait for them."""
    waits = measured.input or MeasuredInput(wait_seconds=(0.0,) * len(measured.step_seconds), in_step=True)
    missing = loader_seconds - float(np.mean(measured.step_seconds))
    exposed = measured.exposed_seconds
    return replace(
        measured,
        step_seconds=tuple((loader_seconds,) * len(of_rank) for of_rank in measured.step_seconds),
        median_seconds=loader_seconds,
        low_seconds=loader_seconds,
        high_seconds=loader_seconds,
        exposed_seconds=None if exposed is None else max(exposed + loader_seconds - measured.median_seconds, 0.0),
        input=replace(waits, wait_seconds=tuple(max(seconds + missing, 0.0) for seconds in waits.wait_seconds)),
        # They wait by turns, which is neither unrest nor drift.
        flags=tuple(flag for flag in measured.flags if flag not in ("not_steady", "drift")),
    )
