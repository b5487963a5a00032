"""Tunes a model on hosts of different speed, and measures the winner in turn with other ways to share the batch.

python benchmarks/uneven_shares/uneven_shares.py --folder shares > shares.json

The hosts compute at speeds 1, 1, 2 and 4, behind fast links and behind slow ones. A study or comparison that is in the
folder already is not repeated. README.md says what must hold.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autosync.plan.bound import bound
from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.bundle import load_bundle
from autosync.strategy.presets.ddp import ddp_cap
from autosync.strategy.presets.uneven_batches import uneven_batches
from autosync.strategy.representation import Strategy

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.clusters import emulated
from benchmarks.in_turn import compared
from benchmarks.kept_studies import kept_result, kept_study
from benchmarks.shared import parser_of, report, run, tell
from benchmarks.undivided import without_cuts

SPEEDS = (1.0, 1.0, 2.0, 4.0)
LINKS: Mapping[str, float] = {"fast links": 4000, "slow links": 500}
"""Megabits per second. Behind the first, compute takes longer than all transfers; behind the others, it does not."""
CAPS = (1 << 20, 4 << 20, 25 << 20)
"""Sizes of DDP's buckets."""
WINNER, EVEN, SPLIT = "tuned together", "even shares", "split"
LEAST_OF_BOUND, LEAST_OVER_EVEN = 0.92, 1.8


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where studies and results are kept")
    parser.add_argument("--model", default="resnet18@x10", help="the model to tune")
    parser.add_argument("--trials", type=int, default=25, help="of each search")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(options.folder)
    found = {}
    for links in LINKS:
        found[links] = kept(links, options.model, num_trials=options.trials, seed=options.seed)
        tell(f"{links}: {found[links]['in_words']}")
    holds = {
        "near_the_bound": all(one["share_of_bound"] >= LEAST_OF_BOUND for one in found.values()),
        "faster_than_even": found["fast links"]["over"][EVEN]["value"] >= LEAST_OVER_EVEN,
        "faster_than_split": found["slow links"]["over"][found["slow links"]["best_split"]]["low"] > 1,
    }
    settings = {"model": options.model, "speeds": SPEEDS, "megabits": LINKS, "trials": options.trials}
    return report({"settings": settings, "holds": holds, "links": found}, holds=all(holds.values()))


def kept(links: str, model: str, *, num_trials: int, seed: int) -> dict[str, Any]:
    """Return the result behind some links from the folder, or measure it and keep it there."""
    path = Path(f"{model.replace('@', '-')}-{links.replace(' ', '-')}-{num_trials}-{seed}.json")
    return kept_result(path, lambda: measured(path.stem, load_model(model), uneven_hosts(links), num_trials, seed))


def uneven_hosts(links: str) -> ClusterSpec:
    """Return the emulated hosts behind some links."""
    cluster = emulated(*[LINKS[links]] * len(SPEEDS))
    nodes = [replace(node, compute=speed) for node, speed in zip(cluster.nodes, SPEEDS, strict=True)]
    return replace(cluster, name=f"uneven-hosts-with-{links.replace(' ', '-')}", nodes=tuple(nodes))


def measured(name: str, model: ModelSpec, cluster: ClusterSpec, num_trials: int, seed: int) -> dict[str, Any]:
    """Tune with shares and without, and measure the winner in turn with its rivals."""
    model = without_cuts(model)
    options: dict[str, Any] = {"cluster": cluster, "num_trials": num_trials, "seed": seed}
    # A batch of one example cannot be shared, so that search has even shares alone.
    even = kept_study(f"{name}-even", model=replace(model, batch_size=1), **options)
    together = kept_study(f"{name}-together", model=model, **options)
    winner = load_bundle(Path(together["folder"], "best.yaml"))
    evenly = load_bundle(Path(even["folder"], "best.yaml")).strategy
    strategies = {WINNER: winner.strategy, EVEN: evenly, **dict(splits(evenly, model, cluster))}
    bundles = {way: bundled(strategy, model, cluster) for way, strategy in strategies.items()}
    comparison = compared(bundles, model, cluster, seed)
    least = bound(model, cluster)
    seconds = {way: one.median_seconds for way, one in comparison.measurements.items()}
    over = {way: comparison.between(WINNER, way) for way in seconds if way != WINNER}
    best_split = min((way for way in seconds if way.startswith(SPLIT)), key=lambda way: seconds[way])
    return {
        "seconds": seconds,
        "shares": {way: one.shares for way, one in strategies.items()},
        "bound_seconds": least.seconds,
        "bound_in_words": str(least.largest),
        "share_of_bound": least.seconds / seconds[WINNER],
        "split_share_of_bound": least.seconds / seconds[best_split],
        "best_split": best_split,
        "over": {way: dataclasses.asdict(ratio.speedup) for way, ratio in over.items()},
        "in_words": "; ".join(map(str, (over[EVEN], over[best_split]))),
        "wall_seconds": {"together": together["wall_seconds"], "even": even["wall_seconds"]},
    }


def splits(evenly: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Iterator[tuple[str, Strategy]]:
    """Yield strategies with Cannikin's shares: with buckets of DDP, and with what was tuned for even shares."""
    shares = uneven_batches(model, cluster).shares
    if any(message.synchroniser.refuses_shares for message in evenly.messages):
        tell("what was tuned for even shares refuses others")
    else:
        yield f"{SPLIT}, tuned apart", replace(evenly, name="", shares=shares)
    for cap_bytes in CAPS:
        buckets = ddp_cap(model, cluster, cap_bytes=cap_bytes)
        yield f"{SPLIT}, buckets of {cap_bytes >> 20} MiB", replace(buckets, name="", shares=shares)


if __name__ == "__main__":
    run(main)
