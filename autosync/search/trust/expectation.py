"""Expectations: the step times that proposals are predicted to have, told before their trials.

They are kept with the trials, so that predictions can be compared with measurements after any interruption.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from autosync.datasets.schema import Record
from autosync.search.candidates import Candidate
from autosync.search.proposers.breeding import Judge
from autosync.search.proposers.history import HistoryReader, fastest
from autosync.search.proposers.interface import Ground
from autosync.search.proposers.learned import NUM_COMPARED
from autosync.search.proposers.likeness import Likeness
from autosync.search.trust.measured_spread import Situation
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Strategy
from autosync.trials.periods import MOST_STEPS, steps_of_sample, strategy_period, turn_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The prediction for one strategy: the logarithm of its seconds, and the spread of this logarithm.

    `situation` tells whether trials of the target were known (`later`) or none (`first`). `steps_each` is the number of
    steps in each sample of a trial.
    """

    log_seconds: float
    spread: float
    situation: Situation
    steps_each: int = 1

    def __post_init__(self) -> None:
        if not math.isfinite(self.log_seconds) or not 0 < self.spread < math.inf:
            raise ValueError(f"{self.log_seconds} with a spread of {self.spread} (finite, and a spread above 0)")
        if not 1 <= self.steps_each <= MOST_STEPS:
            raise ValueError(f"samples of {self.steps_each} steps (1 to {MOST_STEPS})")

    @property
    def seconds(self) -> float:
        return math.exp(self.log_seconds)

    def error(self, log_seconds: float) -> float:
        """Return the standardised error, from the logarithm of the measured seconds."""
        return (log_seconds - self.log_seconds) / self.spread

    def to_plain(self) -> dict[str, Any]:
        """Return the expectation as plain values, as a study keeps it."""
        return asdict(self)

    @classmethod
    def from_plain(cls, fields: object) -> Self | None:
        """Return the expectation of plain values; None if they are none. Older studies lack `steps_each`."""
        if not isinstance(fields, Mapping):
            return None
        given = {"steps_each": 1, **fields}
        if set(given) != {"log_seconds", "spread", "situation", "steps_each"}:
            return None
        if not isinstance(given["steps_each"], int):
            return None
        numbers = [given["log_seconds"], given["spread"]]
        if not all(isinstance(one, int | float) for one in numbers) or given["situation"] not in ("first", "later"):
            return None
        try:
            return cls(**{**given, "log_seconds": float(numbers[0]), "spread": float(numbers[1])})
        except ValueError:
            return None


class Expecting:
    """Tells what is expected of proposals, whichever proposer made them.

    The simulator of the ground predicts, corrected by its errors on the fastest measured strategies, as the proposer
    `learned` judges.
    """

    def __init__(self, ground: Ground) -> None:
        self._simulator = ground.simulator
        self._model = ground.model
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
            strategy_id: Expectation(
                log_seconds=one.log_seconds,
                spread=one.spread,
                situation=situation,
                steps_each=steps_each_expected(strategy, self._model),
            )
            for (strategy_id, (_, strategy)), one in zip(ours.items(), judged, strict=True)
        }


def steps_each_expected(strategy: Strategy, model: ModelSpec) -> int:
    """Return the number of steps in each sample of a strategy's trial; the trial service tells it only then."""
    period = strategy_period(strategy)
    usual = None if model.input is None or strategy.stages else model.input.usual
    if usual is None:
        return min(steps_of_sample(period, 1), MOST_STEPS)
    num_workers = (strategy.input or usual).num_workers
    return min(steps_of_sample(period, turn_steps(num_workers, model.accumulation_steps)), MOST_STEPS)
