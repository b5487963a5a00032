"""Measure how far predictions are from the shipped records, as multiples of their own spread.

    python tools/measure_spread.py                 # writes datasets/measured_spread.json
    python tools/measure_spread.py --records STORE -o FILE.json

A search is replayed over the records of each model on each cluster that has enough of them. It first takes the
strategies that are predicted to be fastest, then in rounds those that might be fastest, as `tune` does. The errors of
the first ones and of the later ones are kept apart; of the later ones, only strategies count that were predicted to be
about as fast as the fastest so far. The simulator `learned` begins with a prior from the records of all
other models. Prints one JSON document: how many later errors were inside the intervals that were fitted to the errors
of all other models.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autosync.datasets.dataset import SHIPPED
from autosync.search.candidates import strategy_of
from autosync.search.proposers.breeding import Judge, Judged
from autosync.search.proposers.history import TriedStrategy, fastest
from autosync.search.proposers.learned import NUM_COMPARED
from autosync.search.proposers.likeness import Likeness
from autosync.search.trust.error_belief import ErrorBelief, fitted
from autosync.search.trust.measured_spread import (
    ErrorsOfTarget,
    MeasuredSpread,
    Situation,
    by_key,
    key_of,
    shipped_spread_file,
    write_spread,
)
from autosync.simulators.features.reader import Read, StrategyReader
from autosync.simulators.interface import Prediction
from autosync.simulators.learned.boosted import UNTAUGHT, Boosted
from autosync.simulators.learned.losses import Targets
from autosync.simulators.learned.priors import Lot, lots_of
from autosync.simulators.learned.ranker import Lesson, RankerStudent
from autosync.simulators.learned.rehearsal import rehearsed
from autosync.simulators.learned.trials import TrialReader, taken, targets_of
from autosync.strategy.representation import Strategy

sys.path.append(str(Path(__file__).parents[1]))
from benchmarks.shared import parser_of, tell

FEWEST_STRATEGIES = 12
"""The fewest strategies of a model on a cluster among which a choice by prediction says something."""

NUM_FIRST = 4
ROUND_SIZE = 6
NUM_ROUNDS = 5
NEAR = 0.05
"""The errors after trials count of strategies that were predicted to be at most this share slower than the fastest so
far. Whether trials are worth it depends on these, and errors of slower strategies are larger.
"""

CONFIDENCES = (0.5, 0.8, 0.95)

Positions = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Course:
    """The records of one model on one cluster, as simulators read them."""

    lot: Lot
    reader: StrategyReader
    rows: Read
    targets: Targets
    strategies: tuple[Strategy, ...]


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


def main() -> int:
    """Run from the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--records", type=Path, default=SHIPPED, help="a store or a dataset folder")
    parser.add_argument("-o", "--output", type=Path, default=shipped_spread_file())
    options = parser.parse_args()
    targets = tuple(errors_of(courses_of(lots_of(options.records))))
    beliefs = {
        key: ErrorBelief(**{name: float(f"{value:.4g}") for name, value in figures_of(fitted(groups)).items()})
        for key, groups in by_key(targets).items()
    }
    write_spread(options.output, MeasuredSpread(rehearsed=rehearsed(), beliefs=beliefs, targets=targets))
    print(json.dumps({key: coverage(targets, key) for key in beliefs}, indent=2))
    return 0


def courses_of(lots: Sequence[Lot]) -> list[Course]:
    """Read all lots, which takes most of the time."""
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


def errors_of(courses: Sequence[Course]) -> Iterator[ErrorsOfTarget]:
    """Yield the errors of both simulators on each course that is long enough."""
    for model in sorted({course.lot.model_name for course in courses}):
        tell(f"judging without {model}")
        prior = _prior([course for course in courses if course.lot.model_name != model])
        for course in courses:
            if course.lot.model_name == model and len(course.strategies) >= FEWEST_STRATEGIES:
                yield from _replayed("learned", course, prior)
                yield from _replayed("timeline", course, None)


def _prior(courses: Sequence[Course]) -> Boosted:
    lesson = Lesson()
    for course in courses:
        lesson.add(course.reader, course.rows, course.targets, model=course.lot.model_name)
    return lesson.prior() if courses else UNTAUGHT


def _replayed(name: str, course: Course, prior: Boosted | None) -> Iterator[ErrorsOfTarget]:
    told: list[int] = []
    errors: dict[Situation, list[float]] = {"first": [], "later": []}
    for _ in range(NUM_ROUNDS + 1):
        judged = _judged(_simulator(name, course, prior, told), course, told)
        left = [place for place in range(len(judged)) if place not in told]
        situation: Situation = "later" if told else "first"
        ranks = [one.hope if told else one.log_seconds for one in judged]
        picked = sorted(left, key=ranks.__getitem__)[: ROUND_SIZE if told else NUM_FIRST]
        log_best = min((course.targets.log_seconds[place] for place in told), default=math.inf)
        for place in picked:
            if judged[place].log_seconds > log_best + NEAR:
                continue
            error = (course.targets.log_seconds[place] - judged[place].log_seconds) / judged[place].spread
            errors[situation].append(round(float(error), 4))
        told += picked
    for situation, found in errors.items():
        if found:
            yield ErrorsOfTarget(
                simulator=name,
                situation=situation,
                model=course.lot.model_name,
                cluster=course.lot.cluster.name,
                errors=tuple(found),
            )


def _simulator(name: str, course: Course, prior: Boosted | None, told: Sequence[int]) -> Foretold:
    if prior is None:
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


def coverage(targets: Sequence[ErrorsOfTarget], key: str) -> dict[str, Any]:
    """Return the share of errors inside intervals of beliefs that were fitted to the errors of all other models."""
    inside: dict[float, list[bool]] = {confidence: [] for confidence in CONFIDENCES}
    for model in sorted({one.model for one in targets}):
        belief = fitted(by_key(targets, without=model)[key])
        for one in targets:
            if one.model == model and key_of(one.simulator, one.situation) == key:
                for number, error in enumerate(one.errors):
                    for confidence, found in inside.items():
                        low, high = belief.after(one.errors[:number]).interval(confidence)
                        found.append(low <= error <= high)
    return {"errors": len(inside[0.5]), **{f"{key:.0%}": round(float(np.mean(one)), 3) for key, one in inside.items()}}


def figures_of(belief: ErrorBelief) -> dict[str, float]:
    """Return the figures of a belief by name."""
    return {name: getattr(belief, name) for name in ("bias", "bias_weight", "scale", "scale_weight")}


if __name__ == "__main__":
    sys.exit(main())
