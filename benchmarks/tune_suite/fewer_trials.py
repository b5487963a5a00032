"""Measures what `tune` loses at its defaults, and with `--trials 0`, against a search with many trials.

    python benchmarks/tune_suite/fewer_trials.py --folder fewer > fewer.json

Every target is tuned in three ways: with `--trials 50`, without `--trials`, so that trials go on while they are worth
their time, and with `--trials 0`. Their winners are then measured in turn, and so is the first answer of the search
without `--trials`, which a user has long before its end. A strategy that won twice is measured once.
The targets are twelve pairs of model and cluster of which the shipped records have none. A study or result that is in
the folder already is not repeated. README.md says what must hold. It needs an idle machine, and four hours or more.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autosync.datasets.studies import read_study
from autosync.plan.bundling import bundled
from autosync.search.candidates import candidate_of
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.bundle import Bundle, load_bundle
from autosync.strategy.presets import build_preset

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.in_turn import compared
from benchmarks.kept_studies import kept_result, kept_study, winner_of
from benchmarks.shared import parser_of, report, run, tell

TARGETS = (
    ("bert_tiny@x4", "4-hosts-uneven"),
    ("gpt_mini@x2", "5-hosts-slow-uplink"),
    ("lstm_ptb@x4", "6-hosts-3-racks"),
    ("resnet18@x2", "3-hosts-3-speeds"),
    ("moe@x4", "4-hosts-2-ranks"),
    ("squeezenet@x2", "6-hosts-3-speeds"),
    ("acoustic_mlp@x50", "5-hosts-2-racks"),
    ("mobilenet_v2", "4-hosts-2-servers"),
    ("ncf_small@x50", "6-hosts-3-racks"),
    ("vit_mini@x2", "4-hosts-uneven"),
    ("moe@x4", "5-hosts-2-racks"),
    ("gpt_mini", "4-hosts-2-ranks"),
)
MANY, DEFAULTS, FIRST, NONE = "50 trials", "defaults", "first answer", "no trials"
WAYS: Mapping[str, int | None] = {MANY: 50, DEFAULTS: None, NONE: 0}
"""The ways of tuning, with `num_trials` of each."""
WAYS_AND_FIRST = (*WAYS, FIRST)
MOST_MEAN_LOSS, MOST_LOSS = 0.01, 0.04
"""Without trials, against the best known strategy: in the mean, and on any target."""
MOST_LOSS_BY_DEFAULT, MOST_TIME = 0.01, 0.5
"""At the defaults, against many trials, in geometric means: of the step, and of the time until it is found."""


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where studies and results are kept")
    parser.add_argument("--only", nargs="*", default=(), metavar="MODEL/CLUSTER", help="some of the targets")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(options.folder)
    found = {}
    for model, cluster in TARGETS:
        name = f"{model}/{cluster}"
        if not options.only or name in options.only:
            found[name] = kept(model, cluster, options.seed)
            tell(f"{name}: {found[name]['in_words']}")
    overall = overall_of(found)
    return report({"seed": options.seed, **overall, "targets": found}, holds=all(overall["holds"].values()))


def kept(model: str, cluster: str, seed: int) -> dict[str, Any]:
    """Return the result of a target from the folder, or measure it and keep it there."""
    path = Path(f"{model}-{cluster}-{seed}.json".replace("@", "-"))
    return kept_result(path, lambda: measured(path.stem, model, cluster, seed))


def measured(name: str, model_name: str, cluster_name: str, seed: int) -> dict[str, Any]:
    """Tune a target in all ways, and measure the winners in turn."""
    model, cluster = load_model(model_name), load_cluster(cluster_name)
    studies = {
        way: kept_study(f"{name}-{way.replace(' ', '-')}", model=model, cluster=cluster, num_trials=count, seed=seed)
        for way, count in WAYS.items()
    }
    bundles = {way: load_bundle(Path(one["folder"], "best.yaml")) for way, one in studies.items()}
    bundles[FIRST] = first_answer(studies[DEFAULTS], model, cluster)
    ids = {way: one.strategy_id for way, one in bundles.items()}
    measured_as = {way: next(one for one in WAYS_AND_FIRST if ids[one] == ids[way]) for way in WAYS_AND_FIRST}
    differing = {way: bundles[way] for way in WAYS_AND_FIRST if measured_as[way] == way}
    seconds = dict.fromkeys(WAYS_AND_FIRST, 1.0)
    between: dict[str, str] = {}
    if len(differing) > 1:
        comparison = compared(differing, model, cluster, seed)
        seconds = {way: comparison.measurements[measured_as[way]].median_seconds for way in WAYS_AND_FIRST}
        between = {way: str(comparison.between(way, MANY)) for way in differing if way != MANY}
    best = min(seconds.values())
    return {
        "seconds": {way: winner_of(one)["seconds"]["value"] for way, one in studies.items()},
        "over_best": {way: one / best for way, one in seconds.items()},
        "compared": between,
        "same_strategy_as": measured_as,
        "num_trials": {way: one["num_trials"] for way, one in studies.items()},
        "wall_seconds": {
            **{way: one["wall_seconds"] for way, one in studies.items()},
            FIRST: studies[DEFAULTS]["first_answer"]["wall_seconds"],
        },
        "search_seconds": {way: one["search_seconds"] for way, one in studies.items()},
        "forecasts": studies[DEFAULTS]["forecasts"],
        "over_stock_ddp": {way: one["winner"]["speedup_over_stock_ddp"] for way, one in studies.items()},
        "in_words": "; ".join(between.values()) or "all ways found the same strategy",
    }


def first_answer(study: Mapping[str, Any], model: ModelSpec, cluster: ClusterSpec) -> Bundle:
    """Return the bundle that a search without `--trials` wrote first."""
    tried = {one.strategy_id: one for one in map(candidate_of, read_study(study["folder"]))}
    winner = tried[study["first_answer"]["strategy_id"]]
    # Stock DDP has the bundle of its own buckets.
    strategy = winner.strategy or build_preset("ddp", model, cluster)
    return bundled(strategy, model, cluster)


def overall_of(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures over all targets, and what holds of them."""
    losses = [one["over_best"][NONE] for one in found.values()]
    steps, times = (
        {way: over_many_trials(found, what, way) for way in (DEFAULTS, FIRST)} for what in ("over_best", "wall_seconds")
    )
    return {
        "no_trials_over_best": {"mean": statistics.geometric_mean(losses), "worst": max(losses)},
        "over_many_trials": {"step": steps, "time": times},
        "holds": {
            "no_trials_in_the_mean": statistics.geometric_mean(losses) <= 1 + MOST_MEAN_LOSS,
            "no_trials_at_worst": max(losses) <= 1 + MOST_LOSS,
            "first_answer": steps[FIRST] <= 1 + MOST_LOSS_BY_DEFAULT,
            "time_of_first_answer": times[FIRST] <= MOST_TIME,
            "defaults": steps[DEFAULTS] <= 1 + MOST_LOSS_BY_DEFAULT,
            "time_of_defaults": times[DEFAULTS] <= MOST_TIME,
        },
    }


def over_many_trials(found: Mapping[str, Mapping[str, Any]], what: str, way: str) -> float:
    """Return a figure of a way over that with many trials, in the geometric mean of all targets."""
    return statistics.geometric_mean([one[what][way] / one[what][MANY] for one in found.values()])


if __name__ == "__main__":
    run(main)
