"""Expectations: the step times that proposals are predicted to have, told before their trials.

They are kept with the trials, so that predictions can be compared with measurements after any interruption.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from autosync.datasets.schema import Measurement, Record
from autosync.search.candidates import Candidate
from autosync.search.proposers.breeding import Judge
from autosync.search.proposers.history import HistoryReader, fastest
from autosync.search.proposers.interface import Ground
from autosync.search.proposers.learned import NUM_COMPARED
from autosync.search.proposers.likeness import Likeness
from autosync.search.trust.measured_spread import Situation


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The prediction for one strategy: the logarithm of its seconds, and the spread of this logarithm.

    `situation` tells whether trials of the target were known (`later`) or none (`first`).
    """

    log_seconds: float
    spread: float
    situation: Situation

    def __post_init__(self) -> None:
        if not math.isfinite(self.log_seconds) or not 0 < self.spread < math.inf:
            raise ValueError(f"{self.log_seconds} with a spread of {self.spread} (finite, and a spread above 0)")

    @property
    def seconds(self) -> float:
        return math.exp(self.log_seconds)

    def error(self, measurement: Measurement) -> float:
        """Return the standardised error that a measurement shows."""
        return (math.log(measurement.median_seconds) - self.log_seconds) / self.spread

    def to_plain(self) -> dict[str, Any]:
        """Return the expectation as plain values, as a study keeps it."""
        return {"log_seconds": self.log_seconds, "spread": self.spread, "situation": self.situation}

    @classmethod
    def from_plain(cls, fields: object) -> Self | None:
        """Return the expectation of plain values; None if they are none."""
        if not isinstance(fields, Mapping) or set(fields) != {"log_seconds", "spread", "situation"}:
            return None
        numbers = [fields["log_seconds"], fields["spread"]]
        if not all(isinstance(one, int | float) for one in numbers) or fields["situation"] not in ("first", "later"):
            return None
        try:
            return cls(log_seconds=float(numbers[0]), spread=float(numbers[1]), situation=fields["situation"])
        except ValueError:
            return None


class Expecting:
    """Tells what is expected of proposals, whichever proposer made them.

    The simulator of the ground predicts, corrected by its errors on the fastest measured strategies, as the proposer
    `learned` judges.
    """

    def __init__(self, ground: Ground) -> None:
        self._simulator = ground.simulator
        self._likeness = Likeness(ground.model, ground.cluster)
        self._reader = HistoryReader()

    def of(self, history: Sequence[Record], candidates: Sequence[Candidate]) -> dict[str, Expectation]:
        """Return the expectation of each candidate that has a strategy, by its id."""
        ours = {one.strategy_id: (one.origin, one.strategy) for one in candidates if one.strategy is not None}
        if not ours:
            return {}
        self._simulator.learn(history)
        measured = fastest(self._reader.outcomes(history))[:NUM_COMPARED]
        judged = Judge(self._simulator, self._likeness, measured).judge(list(ours.values()))
        situation: Situation = "later" if measured else "first"
        return {
            strategy_id: Expectation(log_seconds=one.log_seconds, spread=one.spread, situation=situation)
            for strategy_id, one in zip(ours, judged, strict=True)
        }
