"""Searches that are replayed over recorded strategies, for `trust.py` and `tools/measure_spread.py`.

A replayed search first takes the strategies that are predicted to be fastest, then in rounds those that might be
fastest, as the proposer `learned` picks among all that it has bred. The simulator `learned` begins with a prior from
the records of all other models. Every strategy is read once, which takes most of the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from autosync.search.candidates import strategy_of
from autosync.search.proposers.breeding import Judge, Judged
from autosync.search.proposers.history import TriedStrategy, fastest
from autosync.search.proposers.learned import NUM_COMPARED
from autosync.search.proposers.likeness import Likeness
from autosync.search.trust.expectation import Expectation
from autosync.simulators.features.reader import Read, StrategyReader
from autosync.simulators.interface import Prediction
from autosync.simulators.learned.boosted import UNTAUGHT, Boosted
from autosync.simulators.learned.losses import Targets
from autosync.simulators.learned.priors import Lot
from autosync.simulators.learned.ranker import Lesson, RankerStudent
from autosync.simulators.learned.trials import TrialReader, taken, targets_of
from autosync.strategy.representation import Strategy
from benchmarks.shared import tell

NUM_FIRST = 4
ROUND_SIZE = 6

SimulatorName = Literal["learned", "timeline"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Course:
    """The records of one model on one cluster, as simulators read them."""

    lot: Lot
    reader: StrategyReader
    rows: Read
    targets: Targets
    strategies: tuple[Strategy, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A trial of a replayed search: what was expected of it, and the seconds of its record."""

    expected: Expectation
    seconds: float

    @property
    def error(self) -> float:
        """The standardised error."""
        return float(np.log(self.seconds) - self.expected.log_seconds) / self.expected.spread


class Foretold:
    """A simulator that has predicted everything already."""

    def __init__(self, name: str, course: Course, log_seconds: npt.NDArray[np.float64], spreads: Any) -> None:
        self.name = name
        self._found = {
            id(strategy): Prediction(seconds=seconds, spread=spread)
            for strategy, seconds, spread in zip(
                course.strategies, np.exp(log_seconds).tolist(), spreads.tolist(), strict=True
            )
        }

    def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
        """Return the predictions for strategies of the course."""
        return [self._found[id(strategy)] for strategy in strategies]

    def learn(self, records: Any) -> None:
        """Do nothing: it has learned already."""


def courses_of(lots: Sequence[Lot]) -> list[Course]:
    """Read all lots."""
    found = []
    for lot in lots:
        tell(f"reading {lot.model.name} on {lot.cluster.name}: {len(lot.records)} strategies")
        reader = StrategyReader(lot.model, lot.cluster)
        rows = TrialReader(reader.read).rows_of(lot.records)
        measurements = [record.measurement for record in lot.records if record.measurement is not None]
        found.append(
            Course(
                lot=lot,
                reader=reader,
                rows=rows,
                targets=targets_of(measurements, rows.complexity),
                strategies=tuple([strategy_of(record) for record in lot.records]),
            )
        )
    return found


def prior_without(courses: Sequence[Course], model: str) -> Boosted:
    """Return a prior that has seen no record of a model."""
    lesson = Lesson()
    others = [course for course in courses if course.lot.model_name != model]
    for course in others:
        lesson.add(course.reader, course.rows, course.targets, model=course.lot.model_name)
    return lesson.prior() if others else UNTAUGHT


def rounds_of(simulator: SimulatorName, course: Course, prior: Boosted, num_rounds: int) -> Iterator[list[Replayed]]:
    """Yield the trials of each round of a search, the first of which knows no trial."""
    told: list[int] = []
    for _ in range(num_rounds):
        judged = _judged(_simulator(simulator, course, prior, told), course, told)
        left = [place for place in range(len(judged)) if place not in told]
        ranks = [one.hope if told else one.log_seconds for one in judged]
        picked = sorted(left, key=ranks.__getitem__)[: ROUND_SIZE if told else NUM_FIRST]
        if not picked:
            return
        yield [
            Replayed(
                expected=Expectation(
                    log_seconds=judged[place].log_seconds,
                    spread=judged[place].spread,
                    situation="later" if told else "first",
                ),
                seconds=float(np.exp(course.targets.log_seconds[place])),
            )
            for place in picked
        ]
        told += picked


def _simulator(name: SimulatorName, course: Course, prior: Boosted, told: Sequence[int]) -> Foretold:
    if name == "timeline":
        return Foretold(name, course, np.log(course.rows.timeline_seconds), np.zeros(len(course.strategies)))
    chosen = np.array(told, dtype=np.intp)
    student = RankerStudent(course.reader, prior=prior)
    taught = student.taught(taken(course.rows, chosen), course.targets.rows(chosen))
    return Foretold(name, course, *taught.predict(course.rows))


def _judged(simulator: Foretold, course: Course, told: Sequence[int]) -> list[Judged]:
    """Return all strategies as `tune` judges them after the trials of some."""
    tried = [
        TriedStrategy(
            strategy=course.strategies[place],
            strategy_id=str(place),
            seconds=float(np.exp(course.targets.log_seconds[place])),
            memory_bytes=None,
        )
        for place in told
    ]
    likeness = Likeness(course.lot.model, course.lot.cluster)
    judge = Judge(simulator, likeness, fastest(tried)[:NUM_COMPARED])
    return judge.judge([("replayed", strategy) for strategy in course.strategies])
