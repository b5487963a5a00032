"""The real targets of `tune_suite.py`: each is tuned as a user would, with the default proposer, and proved.

The folder keeps the studies, and the result of each target in a file of its own: a finished one is read, and an
interrupted one continues. Each target has two studies: one with trials, and one without (`--trials 0`), whose result is
compared with that of the trials.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autosync import __version__
from autosync.datasets.studies import read_study
from autosync.errors import AutosyncError
from autosync.plan.bound import bound
from autosync.plan.bound_terms import rates_of
from autosync.search.measurement_effort import EFFORTS
from autosync.search.prior import prior_path
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.bundle import load_bundle
from benchmarks.kept_studies import kept_result, kept_study, winner_of
from benchmarks.shared import tell
from benchmarks.undivided import without_cuts

GPT = f"{Path(__file__).parent / 'gpt.yaml'}@x10"
NINE = (
    # VGG-like, ResNet-like, a transformer, NCF with sparse embeddings, a mixture of experts; equal hosts, a slow host,
    # two ranks a host, spare servers, three speeds, two racks.
    ("acoustic_mlp@x50", "4-hosts"),
    ("acoustic_mlp@x50", "4-hosts-one-slow"),
    ("resnet18", "4-hosts"),
    ("resnet20@x4", "3-hosts-3-speeds"),
    ("squeezenet@x2", "4-hosts-2-racks"),
    ("gpt_mini", "2-hosts-2-ranks"),
    ("bert_tiny@x4", "4-hosts-2-servers"),
    ("ncf_small@x50", "4-hosts"),
    ("moe@x4", "4-hosts-one-slow"),
)
RACKS = (
    (GPT, "5-hosts-2-racks"),
    ("bert_tiny@x4", "6-hosts-3-racks"),
    ("acoustic_mlp@x50", "5-hosts-slow-uplink"),
)
LATER_TERMS = ("both_ways", "rack_total", "rack_both_ways")
"""The kinds of terms that the bound did not have when the first results were scored by it."""
LEAST_SHARE, LEAST_SPEEDUP, MOST_GAP_LEFT = 0.84, 1.55, 0.5
"""Targets for geometric means: of the first bound and over stock DDP on the nine, and of the gap on all."""
LEAST_SPEEDUP_IN_RACKS = 1.40
"""The target for each of the three with racks."""
_KEPT_SETTINGS = ("budget_seconds", "effort", "simulator", "prior", "without_stages")
"""The options on which a kept result depends, beside those in its file's name."""
NEAR = 1.02
CLEARLY_ABOVE = 1.1
"""The factor above the bound from which a best preset leaves a clear gap, of which tuning should close half."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this mode."""
    parser.add_argument("--folder", type=Path, required=True, help="where the studies are kept")
    parser.add_argument("--targets", nargs="*", default=(), help="some of them, by MODEL/CLUSTER")
    parser.add_argument("--without-stages", action="store_true", help="search data-parallel strategies alone")
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument(
        "--budget-seconds", type=float, default=600.0, help="begin no trial of a target after this time"
    )
    parser.add_argument("--effort", choices=sorted(EFFORTS), default="normal")
    parser.add_argument("--simulator", help="who predicts for the proposer")
    parser.add_argument("--prior", help="records of others to learn from; shipped: those that ship")
    parser.add_argument("--seed", type=int, default=0)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Tune and prove every target."""
    options.folder.mkdir(parents=True, exist_ok=True)
    # Studies are tuned in the folder.
    prior = options.prior if prior_path(options.prior) is None else str(Path(options.prior).resolve())
    os.chdir(options.folder)
    targets: dict[str, Any] = {}
    failures: dict[str, str] = {}
    for target in (*NINE, *RACKS):
        (_, cluster), name = target, _name(target)
        if options.targets and name not in options.targets:
            continue
        tell(f"== {name}")
        try:
            targets[name] = _kept(name, _model(target, options), cluster, options, prior)
        except AutosyncError as error:
            failures[name] = str(error)
            tell(f"{name}: {error}")
    settings = {name: getattr(options, name) for name in ("trials", "seed", *_KEPT_SETTINGS)}
    return {
        "settings": {**settings, "autosync": __version__},
        "targets": targets,
        "failures": failures,
        "overall": _overall(targets),
    }


def _name(target: tuple[str, str]) -> str:
    """Return MODEL/CLUSTER; a model that is a file goes by its name."""
    model, cluster = target
    return f"{Path(model).name}/{cluster}"


def _model(target: tuple[str, str], options: argparse.Namespace) -> ModelSpec:
    model = load_model(target[0])
    return without_cuts(model) if options.without_stages else model


def _kept(
    name: str, model: ModelSpec, cluster: str, options: argparse.Namespace, prior: str | None
) -> Mapping[str, Any]:
    """Return the figures of a target from the folder, or tune it and keep them there."""
    path = Path(f"{_file_name(name)}-{options.trials}-{options.seed}.json")
    settings = {name: getattr(options, name) for name in _KEPT_SETTINGS}

    def judged() -> dict[str, Any]:
        searched = _tuned(name, model, cluster, options, prior, num_trials=options.trials)
        return _judged(searched, _tuned(name, model, cluster, options, prior, num_trials=0))

    return kept_result(path, judged, settings=settings)


def _file_name(name: str) -> str:
    return name.replace("/", "-").replace("@", "-")


def _tuned(
    name: str, model: ModelSpec, cluster: str, options: argparse.Namespace, prior: str | None, *, num_trials: int
) -> Mapping[str, Any]:
    """Return the summary of a study, with its folder."""
    settings: dict[str, Any] = {
        "effort": EFFORTS[options.effort],
        "simulator": options.simulator,
        "prior": prior,
        "seed": options.seed,
    }
    return kept_study(
        f"{_file_name(name)}-{num_trials}",
        model=model,
        cluster=cluster,
        num_trials=num_trials,
        budget_seconds=options.budget_seconds,
        **settings,
    )


def _judged(searched: Mapping[str, Any], picked: Mapping[str, Any]) -> dict[str, Any]:
    """Return one target's figures: the winner, the baselines and the bound, as the proof measured them."""
    contests = {contest["role"]: contest for contest in reversed(searched["contests"])}
    winner = winner_of(searched)
    default = contests["default"]
    bounds = _bounds(searched)
    is_divided = bool(load_bundle(Path(searched["folder"], "best.yaml")).strategy.stages)
    own = bounds["stage_bound_seconds"] if is_divided else bounds["bound_seconds"]
    best = min(one["seconds"]["value"] for one in searched["contests"])
    seconds = [
        record.measurement.median_seconds if record.measurement else math.inf
        for record in read_study(searched["folder"])
    ]
    fastest = min(seconds, default=math.inf)
    # The trials of baselines for the proof follow the search's trials. They may be the best, but the search did not
    # find them.
    searching = seconds[: searched["num_trials"]]
    pick = winner_of(picked)
    pick_default = next(one for one in picked["contests"] if one["role"] == "default")
    return {
        "winner": searched["winner"],
        "winner_seconds": winner["seconds"],
        "stock_ddp": default["seconds"],
        "best_bucket": contests["best bucket"]["seconds"] if "best bucket" in contests else None,
        "best_preset": contests["best preset"]["seconds"] if "best preset" in contests else None,
        "is_divided": is_divided,
        **bounds,
        "over_stock_ddp": winner["speedup_over_stock_ddp"],
        # The bound of the winner's own class: with stages or without. The first one was of strategies without.
        "share_of_bound": own / winner["seconds"]["value"],
        "share_of_first_bound": None if is_divided else bounds["first_bound_seconds"] / winner["seconds"]["value"],
        "gap_closed": _gap_closed(contests.get("best preset"), winner, own),
        "trials_to_near_best_found": next((n for n, one in enumerate(searching, 1) if one <= NEAR * fastest), None),
        # The result of `--trials 0`. Each is relative to its own default, because the two studies ran at different
        # times.
        "pick_without_trials_over_best": (pick["seconds"]["value"] / pick_default["seconds"]["value"])
        / (best / default["seconds"]["value"]),
        "num_trials": searched["num_trials"],
        "wall_seconds": searched["wall_seconds"],
        "search_seconds": searched["search_seconds"],
        "own_seconds": searched["own_seconds"],
        "own_share": searched["own_seconds"] / searched["wall_seconds"],
        "peak_memory_bytes": searched["peak_memory_bytes"],
        "ended": searched["ended"],
    }


def _bounds(searched: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the bounds of strategies without stages, by all terms and by those of the first results, and with stages.

    The last is None if no stages were searched.
    """
    folder, stages = Path(searched["folder"]), searched["stages"]
    model, cluster = load_model(str(folder / "model.yaml")), load_cluster(str(folder / "cluster.yaml"))
    terms = bound(model, cluster, rates=rates_of(cluster), even_rows=True).terms
    return {
        "bound_seconds": searched["bound_seconds"],
        "first_bound_seconds": max(term.seconds for term in terms if term.kind not in LATER_TERMS),
        "stage_bound_seconds": stages["bound_seconds"] if stages["searched"] else None,
    }


def _gap_closed(preset: Mapping[str, Any] | None, winner: Mapping[str, Any], least: float) -> float | None:
    """Return the share of the gap between the best preset and the bound that the winner closes.

    None if there is no clear gap.
    """
    if preset is None or preset["seconds"]["value"] <= CLEARLY_ABOVE * least:
        return None
    above = preset["seconds"]["value"] - least
    return float((preset["seconds"]["value"] - winner["seconds"]["value"]) / above)


def _overall(targets: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    nine = [targets[name] for name in map(_name, NINE) if name in targets]
    racks = [targets[name] for name in map(_name, RACKS) if name in targets]
    both = [*nine, *racks]
    lows = [(target["over_stock_ddp"] or {}).get("low", 1.0) for target in both]
    rest = [max(1 - target["gap_closed"], 1e-3) for target in both if target["gap_closed"] is not None]
    picks = [target["pick_without_trials_over_best"] for target in both]
    shares = [target["share_of_first_bound"] for target in nine]
    found = {
        "num_divided": sum(target["is_divided"] for target in both),
        "mean_share_of_bound": _geometric_mean([target["share_of_bound"] for target in nine]),
        "mean_share_of_first_bound": _geometric_mean([one for one in shares if one is not None]),
        "mean_speedup_over_stock_ddp": _geometric_mean(list(map(_speedup, nine))),
        "least_speedup_in_racks": min(map(_speedup, racks), default=None),
        "least_low_end": min(lows, default=None),
        "mean_gap_left": _geometric_mean(rest),
        "mean_pick_without_trials_over_best": _geometric_mean(picks),
        "largest_pick_without_trials_over_best": max(picks, default=None),
        "largest_own_share": max((target["own_share"] for target in both), default=None),
        "longest_wall_seconds": max((target["wall_seconds"] for target in both), default=None),
        "largest_peak_memory_bytes": max((target["peak_memory_bytes"] for target in both), default=None),
    }
    return {**found, "holds": _holds(found)}


def _speedup(target: Mapping[str, Any]) -> float:
    """Return how many times as fast as stock DDP a winner is. If nothing beats stock DDP, it stays: 1."""
    return float((target["over_stock_ddp"] or {}).get("value", 1.0))


def _holds(found: Mapping[str, Any]) -> dict[str, bool]:
    """Return which targets are met; a figure that was not measured is none."""

    def reaches(figure: str, least: float) -> bool:
        return found[figure] is not None and found[figure] >= least

    return {
        "share_of_first_bound": reaches("mean_share_of_first_bound", LEAST_SHARE),
        "speedup": reaches("mean_speedup_over_stock_ddp", LEAST_SPEEDUP),
        "speedup_in_racks": reaches("least_speedup_in_racks", LEAST_SPEEDUP_IN_RACKS),
        "gap_closed": found["mean_gap_left"] is not None and found["mean_gap_left"] <= MOST_GAP_LEFT,
    }


def _geometric_mean(numbers: Sequence[float]) -> float | None:
    return math.exp(sum(map(math.log, numbers)) / len(numbers)) if numbers else None
