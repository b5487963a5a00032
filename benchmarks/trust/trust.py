"""Replays searches over recorded strategies: when does tuning stop by itself, and how good is what it has then?

    python benchmarks/trust/trust.py > trust.json

Each model on each cluster with enough records is searched as `replay.py` tells, with the rule by which `autosync tune`
stops without `--trials`, for trainings of several durations. What the search believes at first, of errors and of gains
that are left, is fitted to all other models. Reported are the trials that were made, stock DDP's among them, how much
slower the fastest of them is than the fastest strategy of all rounds, the time that trials and proofs would take on the
cluster (from step times alone, without the time of the tuner itself), and the gain that rounds were expected to bring
beside the one that they brought.

The document is on stdout, a table of it on stderr. Ends with 1 if a search for the usual training, of 10 hours, ends
more than 1 % above the fastest in the mean, or more than 4 % at worst, or if it is not among the trainings.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))
from autosync.datasets.dataset import SHIPPED
from autosync.search.measurement_effort import NORMAL_EFFORT
from autosync.search.progress import proof_seconds
from autosync.search.stopping import LEAST_GAIN
from autosync.search.trust.error_belief import ErrorBelief, fitted
from autosync.search.trust.measured_spread import beliefs_without_each, by_key, key_of, shipped_spread
from autosync.search.trust.next_trials import TRAINING_SECONDS, TrialWorth, trial_seconds
from autosync.search.trust.reach import fitted_reach
from autosync.search.trust.trials_so_far import PastTrial, belief_after
from autosync.simulators.learned.priors import lots_of
from autosync.units import format_time
from benchmarks.shared import parser_of, report, run, tell
from benchmarks.trust.replay import Replayed, courses_of, prior_without, rounds_of

NUM_ROUNDS = 6
NUM_EARLY, NUM_LATE = 7, 5
"""The contestants of the first proof and of a second one."""
MOST_ABOVE, WORST_ABOVE = 0.01, 0.04


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--store", type=Path, default=SHIPPED, help="a store, or a folder of packed records")
    parser.add_argument("--least-strategies", type=int, default=24, help="combinations with fewer are left out")
    parser.add_argument("--training-hours", type=float, nargs="*", default=[1.0, TRAINING_SECONDS / 3600, 100.0, 1e9])
    options = parser.parse_args()
    courses = courses_of(lots_of(options.store))
    targets: dict[str, dict[str, Any]] = {}
    for model in sorted({one.lot.model_name for one in courses}):
        chosen = [one for one in courses if one.lot.model_name == model]
        chosen = [one for one in chosen if len(one.strategies) >= options.least_strategies]
        belief = belief_without(model)
        prior = prior_without(courses, model) if chosen else None
        for course in chosen:
            assert prior is not None, "made for them"
            rounds = list(rounds_of("learned", course, prior, NUM_ROUNDS))
            targets[f"{course.lot.model.name}/{course.lot.cluster.name}"] = {
                f"{hours:g} h": Search(training_seconds=3600 * hours, belief=belief).run(rounds)
                for hours in options.training_hours
            }
    names = [f"{hours:g} h" for hours in options.training_hours]
    overall = {name: overall_of([target[name] for target in targets.values()]) for name in names}
    tell(table(targets, overall))
    holds = is_near(overall)
    return report({"targets": targets, "overall": overall, "holds": holds}, holds=holds)


def is_near(overall: Mapping[str, Mapping[str, float]]) -> bool | None:
    """Return whether searches for the usual training end near the fastest; None if it is not among the trainings."""
    usual = overall.get(f"{TRAINING_SECONDS / 3600:g} h")
    return None if usual is None else usual["above"] <= MOST_ABOVE and usual["worst_above"] <= WORST_ABOVE


def belief_without(model: str) -> ErrorBelief:
    """Return the belief that is fitted to the errors and the rounds of all other models."""
    spread, key = shipped_spread(), key_of("learned", "later")
    others = [one for one in spread.targets if one.model != model]
    rounds = [one for one in spread.rounds if one.simulator == "learned" and one.model != model]
    reach = fitted_reach(rounds, beliefs_without_each(others, key))
    return replace(fitted(by_key(others)[key]), reach=reach)


@dataclass(slots=True, kw_only=True)
class Search:
    """A search over the rounds of one target."""

    training_seconds: float
    belief: ErrorBelief
    tried: list[PastTrial] = field(default_factory=list)
    forecasts: list[dict[str, float]] = field(default_factory=list)

    def run(self, rounds: Sequence[Sequence[Replayed]]) -> dict[str, Any]:
        """Make the first round's trials at once, and the others while they are worth their time."""
        early = min(one.seconds for one in rounds[0])
        best, num_trials, seconds = early, 1 + len(rounds[0]), proof_seconds([early] * NUM_EARLY, NORMAL_EFFORT)
        for trials in rounds[1:]:
            made = self._round(trials, best, early)
            num_trials += len(made)
            seconds += sum(trial_seconds(NORMAL_EFFORT, one.seconds) for one in made)
            best = min([best, *(one.seconds for one in made)])
            if not made:
                break
        if is_due(best, early):
            seconds += proof_seconds([best] * NUM_LATE, NORMAL_EFFORT)
        fastest = min(one.seconds for trials in rounds for one in trials)
        found = {"above": best / fastest - 1, "early_above": early / fastest - 1}
        return {"num_trials": num_trials, **found, "seconds": seconds, "rounds": self.forecasts}

    def _round(self, trials: Sequence[Replayed], best: float, early: float) -> list[Replayed]:
        """Return the trials of a round that are made."""
        worth = TrialWorth(effort=NORMAL_EFFORT, training_seconds=self.training_seconds, least_seconds=0.0)
        made: list[Replayed] = []
        fastest = best
        for number in range(len(trials)):
            expected = [one.expected for one in trials[number:]]
            proof = 0.0 if is_due(fastest, early) else proof_seconds([fastest] * NUM_LATE, NORMAL_EFFORT)
            believed = belief_after(self.belief, math.log(early), self.tried, least_gain=LEAST_GAIN)
            found = worth.of(fastest, expected, believed, proof_seconds=proof)
            if number == 0:
                self.forecasts.append({"expected_gain": found.gain})
            if not found.are_worth_it:
                break
            one = trials[number]
            made.append(one)
            self.tried.append(PastTrial(expected=one.expected, log_seconds=math.log(one.seconds)))
            fastest = min(fastest, one.seconds)
        if made:
            self.forecasts[-1]["gain"] = 1 - fastest / best
        return made


def is_due(best: float, early: float) -> bool:
    """Return whether another proof is due."""
    return best < (1 - LEAST_GAIN) * early


def overall_of(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the figures over all targets."""
    rounds = [one for found in runs for one in found["rounds"] if "gain" in one]
    return {
        "num_trials": fmean(one["num_trials"] for one in runs),
        "above": fmean(one["above"] for one in runs),
        "worst_above": max(one["above"] for one in runs),
        "early_above": fmean(one["early_above"] for one in runs),
        "seconds": geometric_mean(one["seconds"] for one in runs),
        "expected_gain": fmean(one["expected_gain"] for one in rounds) if rounds else 0.0,
        "gain": fmean(one["gain"] for one in rounds) if rounds else 0.0,
    }


def table(targets: dict[str, dict[str, Any]], overall: dict[str, dict[str, float]]) -> str:
    """Return the figures of all targets as a table in Markdown: trials, distance to the fastest, and time."""
    names = list(overall)
    rows = [f"| target | after the first proof | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
    for name, found in [*targets.items(), ("all", overall)]:
        first = next(iter(found.values()))["early_above"]
        rows.append(f"| {name} | {first:.1%} | {' | '.join(map(cell, found.values()))} |")
    return "\n".join(rows)


def cell(found: dict[str, Any]) -> str:
    """Return the trials, the distance to the fastest, and the time."""
    return f"{found['num_trials']:.0f}, {found['above']:.1%}, {format_time(round(found['seconds']))}"


if __name__ == "__main__":
    run(main)
