"""Tunes targets with and without strategies that divide the model, and measures both winners in turn.

python benchmarks/pipelines/against_undivided.py slow --folder divided > slow.json
python benchmarks/pipelines/against_undivided.py fast --folder divided > fast.json

Both searches have the same model, cluster and number of trials; one sees a profile without cuts. With fast links that
one is only made where the other chose stages. A study or comparison that is in the folder already is not repeated.
README.md says what must hold.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.bundle import load_bundle

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.clusters import emulated
from benchmarks.in_turn import compared
from benchmarks.kept_studies import kept_result, kept_study
from benchmarks.shared import parser_of, report, run, tell
from benchmarks.undivided import without_cuts

GPT = str(Path(__file__).parent / "gpt.yaml")
SLOW = (
    (GPT, "5-hosts-2-racks"),
    ("bert_tiny@x4", "4-hosts"),
    ("vit_mini@x2", "6-hosts-2-speeds"),
    ("resnet18", "4-hosts"),
    ("lstm_ptb@x4", "4-hosts-2-racks"),
    ("acoustic_mlp@x50", "4-hosts-one-slow"),
)
FAST_LINKS = tuple(replace(emulated(*[4000] * count), name=f"{count}-hosts-with-fast-links") for count in (2, 4))
FAST = tuple(
    (model, cluster)
    for cluster in FAST_LINKS
    for model in ("bert_tiny@x8", "gpt_mini@x4", "resnet18@x4", "acoustic_mlp@x200", "vit_mini@x4")
)
LEAST_SPEEDUP, CLEAR_SPEEDUP, LEAST_CLEAR = 1.3, 1.5, 3
"""On slow links: in the geometric mean, and what at least three of the targets reach."""


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("targets", choices=("slow", "fast"), help="the targets by their links")
    parser.add_argument("--folder", type=Path, required=True, help="where studies and results are kept")
    parser.add_argument("--only", nargs="*", default=(), metavar="MODEL/CLUSTER", help="some of the targets")
    parser.add_argument("--trials", type=int, default=25, help="of each search")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(options.folder)
    found = {}
    for model, cluster in targets_of(options.targets):
        name = f"{Path(model).name.removesuffix('.yaml')}/{cluster.name}"
        if not options.only or name in options.only:
            how = {"num_trials": options.trials, "seed": options.seed, "always": options.targets == "slow"}
            found[name] = kept(name, model, cluster, **how)
            tell(f"{name}: {found[name]['in_words']}")
    summary = of_slow(found) if options.targets == "slow" else of_fast(found)
    settings = {"trials": options.trials, "seed": options.seed}
    return report({"settings": settings, **summary, "targets": found}, holds=all(summary["holds"].values()))


def targets_of(links: str) -> Sequence[tuple[str, ClusterSpec]]:
    """Return models and clusters, by the speed of their links."""
    return FAST if links == "fast" else [(model, load_cluster(cluster)) for model, cluster in SLOW]


def kept(name: str, model: str, cluster: ClusterSpec, *, num_trials: int, seed: int, always: bool) -> dict[str, Any]:
    """Return the result of a target from the folder, or measure it and keep it there."""
    path = Path(f"{name.replace('/', '-').replace('@', '-')}-{num_trials}-{seed}.json")
    how: dict[str, Any] = {"num_trials": num_trials, "seed": seed, "always": always}
    return kept_result(path, lambda: measured(path.stem, load_model(model), cluster, **how))


def measured(name: str, model: ModelSpec, cluster: ClusterSpec, *, always: bool, **how: Any) -> dict[str, Any]:
    """Tune a model with its cuts and without, and measure both winners in turn: `always`, or if one has stages."""
    divided = kept_study(f"{name}-with-stages", model=model, cluster=cluster, **how)
    is_divided = bool(load_bundle(Path(divided["folder"], "best.yaml")).strategy.stages)
    found = {
        "is_divided": is_divided,
        "stages": divided["winner"]["stages"],
        "over_stock_ddp": divided["winner"]["speedup_over_stock_ddp"],
        "wall_seconds": {"with stages": divided["wall_seconds"]},
    }
    if not always and not is_divided:
        return {**found, "is_slower": False, "in_words": "no stages chosen"}
    undivided = kept_study(f"{name}-without-stages", model=without_cuts(model), cluster=cluster, **how)
    folders = {"without stages": undivided["folder"], "with stages": divided["folder"]}
    bundles = {way: Path(folder, "best.yaml") for way, folder in folders.items()}
    comparison = compared(bundles, model, cluster, how["seed"])
    (ratio,) = comparison.ratios
    return {
        **found,
        "seconds": {way: one.median_seconds for way, one in comparison.measurements.items()},
        "over_without_stages": dataclasses.asdict(ratio.speedup),
        "is_slower": ratio.verdict == "slower",
        "in_words": str(ratio),
        "without_stages_over_stock_ddp": undivided["winner"]["speedup_over_stock_ddp"],
        "wall_seconds": {"with stages": divided["wall_seconds"], "without stages": undivided["wall_seconds"]},
    }


def of_slow(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures over targets with slow links, and what holds of them."""
    gains = [one["over_without_stages"]["value"] for one in found.values()]
    mean, num_clear = statistics.geometric_mean(gains), sum(gain >= CLEAR_SPEEDUP for gain in gains)
    holds = {
        "mean_speedup": mean >= LEAST_SPEEDUP,
        "clear_speedups": num_clear >= LEAST_CLEAR,
        "none_slower": not any(one["is_slower"] for one in found.values()),
    }
    return {"mean_speedup": mean, "num_clear": num_clear, "holds": holds}


def of_fast(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return how often stages were chosen where links are fast, and whether they were slower."""
    divided = [name for name, one in found.items() if one["is_divided"]]
    slower = [name for name in divided if found[name]["is_slower"]]
    return {"divided": divided, "divided_and_slower": slower, "holds": {"none_slower": not slower}}


if __name__ == "__main__":
    run(main)
