"""Replays searches over recorded strategies: when does tuning stop by itself, and how good is what it has then?

    python benchmarks/trust/trust.py --store datasets/records > trust.json

Each model on each cluster with enough records is searched as `autosync tune` does without `--trials`, for trainings of
several durations, and for comparison with a number of trials. Nothing runs: each strategy takes the time of its record.
The simulator begins with a prior from the records of all other models. Reported are the trials that were made, how much
slower the winner's record is than the fastest record, and the time that trials and proofs would take on the cluster
(from the step times alone, without the time that the tuner itself takes). The gains that rounds of trials were expected
to bring are held against those that they brought.

The document is on stdout, a table of it on stderr. Ends with 1 if the winners of the usual training are more than 1 %
slower than those of a number of trials, in the geometric mean, or take more than half of their time.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from autosync.datasets.dataset import SHIPPED, Dataset
from autosync.search.measurement_effort import NORMAL_EFFORT
from autosync.search.pool import Pool, read_pool
from autosync.search.progress import PROOF_WARMUP_STEPS
from autosync.search.trust.next_trials import TRAINING_SECONDS, trial_seconds
from autosync.search.tune import tune
from autosync.search.tuned import Tuned
from autosync.simulators.learned.priors import Lot, lots_of, trained_on
from autosync.simulators.learned.ranker import save_ranker
from autosync.simulators.learned.simulators import ranker_of
from autosync.units import format_time

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.shared import parser_of, report, run, tell

MOST_OVER_TRIALS = 1.01
MOST_OF_THE_TIME = 0.5
NUM_FIRST = 1 + NORMAL_EFFORT.num_predicted
"""The trials of an early proof: stock DDP and the strategies that are predicted to be fastest."""


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--store", type=Path, default=SHIPPED, help="a store, or a folder of packed records")
    parser.add_argument("--least-records", type=int, default=100, help="combinations with fewer are left out")
    parser.add_argument("--trials", type=int, default=50, help="of the searches with a number of trials")
    parser.add_argument("--training-hours", type=float, nargs="*", default=[1.0, TRAINING_SECONDS / 3600, 100.0])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    store = options.store.resolve()
    ways: dict[str, dict[str, Any]] = {f"{options.trials} trials": {"num_trials": options.trials}}
    ways |= {f"{hours:g} h": {"training_seconds": 3600 * hours} for hours in options.training_hours}
    lots = lots_of(store)
    targets = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for model, cluster in combinations(store, options.least_records):
            prior = prior_without(lots, model, Path(folder))
            pool = read_pool(str(store), model=model, cluster=cluster)
            targets[f"{model}/{cluster}"] = {
                name: [searched(store, pool, prior, seed, way) for seed in range(options.seeds)]
                for name, way in ways.items()
            }
            tell(line(f"{model}/{cluster}", targets[f"{model}/{cluster}"]))
    overall = overall_of(targets.values(), list(ways))
    tell(table(targets, overall))
    usual, most = overall[f"{TRAINING_SECONDS / 3600:g} h"], overall[f"{options.trials} trials"]
    holds = usual["over_best_known"] <= MOST_OVER_TRIALS * most["over_best_known"]
    holds &= usual["seconds"] <= MOST_OF_THE_TIME * most["seconds"]
    settings = {"seeds": options.seeds, "trials": options.trials, "least_records": options.least_records}
    return report({"settings": settings, "targets": targets, "overall": overall}, holds=holds)


def combinations(store: Path, least: int) -> Iterator[tuple[str, str]]:
    """Yield models and clusters with enough records."""
    counts = Counter((one.model_name, one.cluster_name) for one in Dataset(store).records(tell))
    yield from sorted(pair for pair, count in counts.items() if count >= least)


def prior_without(lots: Sequence[Lot], model: str, folder: Path) -> Path:
    """Return the folder of a prior that has seen no record of a model."""
    name = model.partition("@")[0]
    path = folder / f"prior-without-{name}"
    if not path.exists():
        others = [lot for lot in lots if lot.model_name != name]
        save_ranker(path, ranker_of(others)[0], trained_on=trained_on(others), accuracy={})
    return path


def searched(store: Path, pool: Pool, prior: Path, seed: int, way: Mapping[str, Any]) -> dict[str, Any]:
    """Search and return the figures."""
    model, cluster = pool.model.name, pool.cluster.name
    study = "-".join([model, cluster, *(f"{key}-{value:g}" for key, value in way.items()), str(seed)])
    tuned = tune(
        model=model,
        cluster=cluster,
        replay=str(store),
        prior=str(prior),
        simulator="learned",
        seed=seed,
        study=study,
        **way,
    )
    known = {key: one.measurement.median_seconds for key, one in pool.records.items() if one.measurement is not None}
    return {
        "num_trials": len(tuned.records),
        "over_best_known": known[tuned.verdict.winner.candidate.strategy_id] / min(known.values()),
        "seconds": cluster_seconds(tuned),
        "search_seconds": tuned.summary["search_seconds"],
        "proved_at_once": tuned.summary["proved_at_once"],
        "ended": tuned.summary["ended"],
        "rounds": list(rounds_of(tuned)),
    }


def rounds_of(tuned: Tuned) -> Iterator[dict[str, float]]:
    """Yield the gain that was expected of each round, and the gain that it brought."""
    seconds = [math.inf if one.measurement is None else one.measurement.median_seconds for one in tuned.records]
    forecasts: Any = tuned.summary["forecasts"]
    ends = [one["after_trials"] for one in forecasts[1:]] + [len(seconds)]
    for forecast, end in zip(forecasts, ends, strict=True):
        begin = forecast["after_trials"]
        if end > begin:
            gain = max(1 - min(seconds[begin:end]) / min(seconds[:begin]), 0.0)
            yield {"after_trials": begin, "expected_gain": forecast["expected_gain"], "gain": gain}


def cluster_seconds(tuned: Tuned) -> float:
    """Return the time that the trials and proofs of a search would take."""
    is_early = tuned.summary["proved_at_once"] or bool(tuned.summary["forecasts"])
    trials = [*tuned.records[NUM_FIRST if is_early else 0 :], *tuned.baselines]
    design = NORMAL_EFFORT.proof
    round_seconds = sum(one.measurement.median_seconds for one in tuned.verdict.results)
    proof = round_seconds * PROOF_WARMUP_STEPS
    proof += min(design.budget_seconds, round_seconds * (design.num_steps + design.num_rounds))
    num_proofs = is_early + (not tuned.summary["proved_at_once"])
    steps = [one.measurement.median_seconds for one in trials if one.measurement is not None]
    return sum(trial_seconds(NORMAL_EFFORT, one) for one in steps) + num_proofs * proof


def overall_of(targets: Any, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the figures of each way to search over all targets: the mean number of trials, and geometric means."""
    found = {}
    for name in names:
        runs = [one for target in targets for one in target[name]]
        rounds = [one for run_of_way in runs for one in run_of_way["rounds"]]
        found[name] = {
            "num_trials": fmean(one["num_trials"] for one in runs),
            "over_best_known": geometric_mean(one["over_best_known"] for one in runs),
            "worst_over_best_known": max(one["over_best_known"] for one in runs),
            "seconds": geometric_mean(one["seconds"] for one in runs),
            "proved_at_once": fmean(one["proved_at_once"] for one in runs),
            "expected_gain": fmean([one["expected_gain"] for one in rounds]) if rounds else 0.0,
            "gain": fmean([one["gain"] for one in rounds]) if rounds else 0.0,
        }
    return found


def table(targets: Mapping[str, Any], overall: Mapping[str, Mapping[str, float]]) -> str:
    """Return the figures of all targets as a table in Markdown."""
    names = list(overall)
    rows = [f"| target | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    rows += [line(name, target) for name, target in targets.items()]
    rows.append(f"| all | {' | '.join(cell([overall[name]]) for name in names)} |")
    return "\n".join(rows)


def line(name: str, target: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return a target's row of the table."""
    return f"| {name} | {' | '.join(cell(runs) for runs in target.values())} |"


def cell(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the mean trials, the distance to the best known, and the time."""
    above = geometric_mean(one["over_best_known"] for one in runs) - 1
    seconds = geometric_mean(one["seconds"] for one in runs)
    return f"{fmean(one['num_trials'] for one in runs):.0f}, {above:.1%}, {format_time(round(seconds))}"


if __name__ == "__main__":
    run(main)
