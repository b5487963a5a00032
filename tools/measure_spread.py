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
from pathlib import Path
from typing import Any

import numpy as np

from autosync.datasets.dataset import SHIPPED
from autosync.search.trust.error_belief import ErrorBelief, fitted
from autosync.search.trust.measured_spread import (
    NEAR,
    ErrorsOfTarget,
    MeasuredSpread,
    Situation,
    by_key,
    key_of,
    shipped_spread_file,
    write_spread,
)
from autosync.simulators.learned.boosted import Boosted
from autosync.simulators.learned.priors import lots_of
from autosync.simulators.learned.rehearsal import rehearsed

sys.path.append(str(Path(__file__).parents[1]))
from benchmarks.shared import parser_of, tell
from benchmarks.trust.replay import Course, SimulatorName, courses_of, prior_without, rounds_of

FEWEST_STRATEGIES = 12
"""The fewest strategies of a model on a cluster among which a choice by prediction says something."""

NUM_ROUNDS = 6
CONFIDENCES = (0.5, 0.8, 0.95)


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


def errors_of(courses: Sequence[Course]) -> Iterator[ErrorsOfTarget]:
    """Yield the errors of both simulators on each course that is long enough."""
    for model in sorted({course.lot.model_name for course in courses}):
        tell(f"judging without {model}")
        prior = prior_without(courses, model)
        for course in courses:
            if course.lot.model_name == model and len(course.strategies) >= FEWEST_STRATEGIES:
                yield from _errors("learned", course, prior)
                yield from _errors("timeline", course, prior)


def _errors(simulator: SimulatorName, course: Course, prior: Boosted) -> Iterator[ErrorsOfTarget]:
    errors: dict[Situation, list[float]] = {"first": [], "later": []}
    best = math.inf
    for trials in rounds_of(simulator, course, prior, NUM_ROUNDS):
        near = [one for one in trials if one.expected.log_seconds <= math.log(best) + NEAR]
        for one in near:
            errors[one.expected.situation].append(round(one.error, 4))
        best = min([best, *(one.seconds for one in trials)])
    for situation, found in errors.items():
        if found:
            yield ErrorsOfTarget(
                simulator=simulator,
                situation=situation,
                model=course.lot.model_name,
                cluster=course.lot.cluster.name,
                errors=tuple(found),
            )


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
