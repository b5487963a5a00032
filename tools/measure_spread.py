"""Measure how far predictions are from the shipped records, as multiples of their own spread.

    python tools/measure_spread.py                 # writes datasets/measured_spread.json
    python tools/measure_spread.py --records STORE -o FILE.json

A search is replayed over the records of each model on each cluster that has enough of them. It first takes the
strategies that are predicted to be fastest, then in rounds those that might be fastest, as `tune` does. The errors of
the first ones and of the later ones are kept apart; of the later ones, only strategies count that were predicted to be
about as fast as the fastest so far. The simulator `learned` begins with a prior from the records of all
other models. Prints one JSON document: how many errors were inside the intervals that were fitted to the errors of all
other models, and what rounds brought beside what they were expected to.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from autosync.datasets.dataset import SHIPPED
from autosync.search.trust.error_belief import ErrorBelief, fitted
from autosync.search.trust.measured_spread import (
    NEAR,
    ErrorsOfTarget,
    MeasuredSpread,
    RoundsOfTarget,
    Situation,
    beliefs_without_each,
    by_key,
    key_of,
    shipped_spread_file,
    write_spread,
)
from autosync.search.trust.reach import fitted_reach, total_gains
from autosync.simulators.learned.priors import lots_of
from autosync.simulators.learned.rehearsal import rehearsed

sys.path.append(str(Path(__file__).parents[1]))
from benchmarks.shared import parser_of, tell
from benchmarks.trust.replay import Course, Replayed, SimulatorName, courses_of, prior_without, rounds_of

FEWEST_STRATEGIES = 12
"""The fewest strategies of a model on a cluster among which a choice by prediction says something."""

NUM_ROUNDS = 6
SIMULATORS: tuple[SimulatorName, ...] = ("learned", "timeline")
CONFIDENCES = (0.5, 0.8, 0.95)


def main() -> int:
    """Run from the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--records", type=Path, default=SHIPPED, help="a store or a dataset folder")
    parser.add_argument("-o", "--output", type=Path, default=shipped_spread_file())
    options = parser.parse_args()
    replays = list(replays_of(courses_of(lots_of(options.records))))
    targets = tuple(target for replay in replays for target in replay.errors())
    rounds = tuple(replay.rounds_after_first() for replay in replays)
    beliefs = {
        key: ErrorBelief(**{name: float(f"{value:.4g}") for name, value in figures_of(fitted(groups)).items()})
        for key, groups in by_key(targets).items()
    }
    gains = {}
    for simulator in SIMULATORS:
        key, ours = key_of(simulator, "later"), [one for one in rounds if one.simulator == simulator]
        others = beliefs_without_each(targets, key)
        beliefs[key] = replace(beliefs[key], reach=float(f"{fitted_reach(ours, others):.3g}"))
        gains[simulator] = gains_without_each(ours, others)
    spread = MeasuredSpread(rehearsed=rehearsed(), beliefs=beliefs, targets=targets, rounds=rounds)
    write_spread(options.output, spread)
    print(json.dumps({**{key: coverage(targets, key) for key in beliefs}, "gains": gains}, indent=2))
    return 0


def replays_of(courses: Sequence[Course]) -> Iterator[Replay]:
    """Yield a search with each simulator on each course that is long enough."""
    for model in sorted({course.lot.model_name for course in courses}):
        tell(f"judging without {model}")
        prior = prior_without(courses, model)
        for course in courses:
            if course.lot.model_name == model and len(course.strategies) >= FEWEST_STRATEGIES:
                for simulator in SIMULATORS:
                    rounds = tuple(map(tuple, rounds_of(simulator, course, prior, NUM_ROUNDS)))
                    yield Replay(simulator=simulator, course=course, rounds=rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A replayed search with one simulator."""

    simulator: SimulatorName
    course: Course
    rounds: tuple[tuple[Replayed, ...], ...]

    def errors(self) -> Iterator[ErrorsOfTarget]:
        """Yield the errors before and after the first trials."""
        errors: dict[Situation, list[float]] = {"first": [], "later": []}
        best = math.inf
        for trials in self.rounds:
            near = [one for one in trials if one.expected.log_seconds <= math.log(best) + NEAR]
            for one in near:
                errors[one.expected.situation].append(round(one.error, 4))
            best = min([best, *(one.seconds for one in trials)])
        for situation, found in errors.items():
            if found:
                yield ErrorsOfTarget(
                    simulator=self.simulator,
                    situation=situation,
                    model=self.course.lot.model_name,
                    cluster=self.course.lot.cluster.name,
                    errors=tuple(found),
                )

    def rounds_after_first(self) -> RoundsOfTarget:
        """Return the rounds after the first picks."""
        best = math.log(min(one.seconds for one in self.rounds[0]))
        return RoundsOfTarget(
            simulator=self.simulator,
            model=self.course.lot.model_name,
            cluster=self.course.lot.cluster.name,
            rounds=tuple(
                tuple(
                    (
                        round(one.expected.log_seconds - best, 4),
                        round(one.expected.spread, 4),
                        round(math.log(one.seconds) - best, 4),
                    )
                    for one in trials
                )
                for trials in self.rounds[1:]
            ),
        )


def gains_without_each(rounds: Sequence[RoundsOfTarget], beliefs: Mapping[str, ErrorBelief]) -> dict[str, float]:
    """Return what rounds bring in the mean, and were expected to, by a reach that is fitted to all other models."""
    reaching = {}
    for model, belief in beliefs.items():
        others = [one for one in rounds if one.model != model]
        reaching[model] = replace(belief, reach=fitted_reach(others, beliefs))
    expected, found = total_gains(rounds, reaching)
    count = sum(len(one.rounds) for one in rounds)
    return {"rounds": count, "expected": round(expected / count, 5), "found": round(found / count, 5)}


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
