"""Predicts three to eight emulated hosts from a probe of two, and compares with what they do; see README.md.

python benchmarks/scaling_prediction/scaling_prediction.py measure --folder scaling
python benchmarks/scaling_prediction/scaling_prediction.py report --folder scaling > scaling.json
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autosync.errors import AutosyncError
from autosync.plan.bundling import bundled
from autosync.scaling.extension import extended
from autosync.scaling.fields import fields
from autosync.scaling.knee import knee_of
from autosync.scaling.predict import predict_scaling
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec
from autosync.strategy.emit.settings import as_it_ships
from autosync.trials.compare import Design, compare
from autosync.trials.contestant import Contestant
from autosync.trials.probe.collectives import compute
from autosync.trials.probe.run import probe
from autosync.trials.service import TrialService

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.clusters import MEGABIT
from benchmarks.scaling_prediction.points import KINDS, PointFolder, Target, best_at, figures_of
from benchmarks.shared import parser_of, report, run, tell

MODELS = (
    "resnet20@x4",
    "densenet121",
    "efficientnet_b0",
    "googlenet@x4",
    "shufflenet_v2@x4",
    "vit_tiny@x4",
    "bert_mini@x4",
)
"""Models that do not occur in the shipped records. None is large: two processors have to send what eight hosts send."""

RATES = (150.0, 200.0)
"""Megabits a second. At 300, two processors are busy for four fifths of the time with what eight hosts send, and hosts
with processors of their own would be faster than those that are measured."""

FEWEST_POINTS = 150
MOST_MEDIAN_ERROR = 0.04
COVERAGE = (0.82, 0.97)
LEAST_KNEES_RIGHT = 0.9
MOST_SECONDS = 120.0
MOST_PACE_CHANGE = 0.15
"""Processors whose pace changes by more have other neighbours on their machine than while it was probed."""


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("mode", choices=("measure", "report"))
    parser.add_argument("--folder", type=Path, required=True, help="where probes, predictions and points are kept")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--megabits", nargs="+", type=float, default=RATES, help="rates of links")
    parser.add_argument("--hosts", nargs="+", type=int, default=(3, 4, 5, 6, 7, 8))
    parser.add_argument("--steps", type=int, default=12, help="measured steps of each strategy")
    parser.add_argument("--budget-seconds", type=float, default=40.0, help="time for the steps of a point")
    parser.add_argument("--limit-seconds", type=float, default=1e9, help="begin no further point after this time")
    options = parser.parse_args()
    folder = PointFolder(options.folder)
    targets = [Target(model, megabits) for megabits in options.megabits for model in options.models]
    if options.mode == "measure":
        measure(folder, targets, options)
        return 0
    document = results(figures_of(folder, targets, options.hosts), [folder.prediction(target) for target in targets])
    return report(document, holds=all(document["holds"].values()))


def measure(folder: PointFolder, targets: Sequence[Target], options: argparse.Namespace) -> None:
    """Probe, predict and measure everything that the folder lacks."""
    deadline = time.monotonic() + options.limit_seconds
    for target in targets:
        model = target.load_model()
        cluster = folder.probed(target.megabits)
        if cluster is None:
            tell(f"probing two hosts at {target.megabits:g} Mbit/s")
            cluster = probe(two_hosts(target.megabits)).cluster
            folder.keep_pace(target.megabits, pace_seconds())
            folder.keep_probed(target.megabits, cluster)
        if folder.prediction(target) is None:
            tell(f"predicting {target.name}")
            began = time.monotonic()
            found = fields(predict_scaling(model, cluster, options.hosts))
            folder.keep_prediction(target, {**found, "prediction_seconds": time.monotonic() - began})
        for hosts in options.hosts:
            if folder.point(target, hosts) is None and time.monotonic() < deadline:
                tell(f"measuring {target.name} on {hosts} hosts")
                folder.keep_point(target, hosts, _measured(folder, target, model, extended(cluster, hosts), options))


def pace_seconds() -> float:
    """Return the seconds of a fixed computation on one thread. They show how fast the processors are at the moment."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return statistics.median(compute(200))
    finally:
        torch.set_num_threads(threads)


def two_hosts(megabits: float) -> ClusterSpec:
    """Return a cluster of two equal hosts, from which all larger clusters are predicted."""
    rate = megabits * MEGABIT
    nodes = [Node(name=f"host-{n}", host=f"host-{n}", bandwidth_out=rate, bandwidth_in=rate) for n in range(2)]
    alike = (tuple([node.name for node in nodes]),)
    return ClusterSpec(name=f"scaling-{megabits:g}", nodes=tuple(nodes), launcher="testbed", alike=alike)


def _measured(
    folder: PointFolder, target: Target, model: ModelSpec, cluster: ClusterSpec, options: argparse.Namespace
) -> dict[str, Any]:
    """Measure stock DDP and the strategy that was found in turn; a failure is kept as such."""
    prediction = folder.prediction(target)
    assert prediction is not None, "what is predicted is measured"
    strategy = best_at(prediction, len(cluster.nodes))
    stock = Contestant(name="stock_ddp", ddp=as_it_ships(model, is_replayed=True))
    best = replace(stock, name="best")
    if strategy is not None:
        best = Contestant(name="best", bundle=bundled(strategy, model, cluster))
    # What was probed does not change what the testbed emulates.
    emulated = replace(cluster, calibration=None)
    pace = pace_seconds() / folder.pace(target.megabits)
    try:
        with (
            tempfile.TemporaryDirectory() as logs,
            TrialService(target=target.model, model=model, cluster=emulated, folder=Path(logs)) as service,
        ):
            design = Design(num_steps=options.steps, budget_seconds=options.budget_seconds)
            found = compare(service, [stock, best], design=design)
    except AutosyncError as error:
        tell(f"failed: {error}")
        return {"failure": str(error), **dict.fromkeys(KINDS)}
    measured = {
        name: {
            "seconds": one.median_seconds,
            "low": one.low_seconds,
            "high": one.high_seconds,
            "cpu_share": one.cpu_share,
            "flags": list(one.flags),
            "pace": pace,
        }
        for name, one in found.measurements.items()
    }
    # If nothing faster was found, both are stock DDP, which makes one point.
    return measured if strategy is not None else {**measured, "best": None}


def results(rows: Sequence[Mapping[str, Any]], predictions: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """Return the accuracy of all points beside the targets."""
    errors = np.array([abs(row["predicted"]["value"] / row["seconds"] - 1) for row in rows])
    inside = [
        row["predicted"]["low"] <= row["seconds"] <= row["predicted"]["high"]
        for row in rows
        if row["predicted"]["low"] is not None
    ]
    knees = _knees(rows)
    seconds = [one["prediction_seconds"] / len(one["sizes"]) for one in predictions if one is not None]
    found = {
        "num_points": len(rows),
        "num_models": len({row["model"] for row in rows}),
        "median_error": float(np.median(errors)) if len(errors) else None,
        "p90_error": float(np.quantile(errors, 0.9)) if len(errors) else None,
        "coverage": float(np.mean(inside)) if inside else None,
        "num_knees": len(knees),
        "knees_right": float(np.mean(knees)) if knees else None,
        "most_seconds": max(seconds, default=None),
        "num_flagged": sum(bool(row["flags"]) for row in rows),
        "num_at_another_pace": sum(abs(row["pace"] - 1) > MOST_PACE_CHANGE for row in rows),
    }
    return {**found, "holds": _holds(found), "points": list(rows)}


def _knees(rows: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Return, for each model, rate and kind with two sizes or more, whether the predicted knee is the measured one."""
    curves: dict[tuple[Any, ...], dict[int, tuple[float, float]]] = defaultdict(dict)
    for row in rows:
        head = (row["model"], row["megabits"], row["kind"])
        curves[head][row["hosts"]] = (row["seconds"], row["predicted"]["value"])
    found = []
    for curve in curves.values():
        # All hosts train the same batch.
        measured, predicted = (knee_of({n: n / pair[which] for n, pair in curve.items()}) for which in (0, 1))
        if measured is not None and predicted is not None:
            found.append(measured.num_nodes == predicted.num_nodes)
    return found


def _holds(found: Mapping[str, Any]) -> dict[str, bool]:
    """Return which of the targets are met. What is unknown is not met."""
    coverage, error, right = found["coverage"], found["median_error"], found["knees_right"]
    return {
        "points": found["num_points"] >= FEWEST_POINTS,
        "median_error": error is not None and error <= MOST_MEDIAN_ERROR,
        "coverage": coverage is not None and COVERAGE[0] <= coverage <= COVERAGE[1],
        "knees_right": right is not None and right >= LEAST_KNEES_RIGHT,
        "seconds": found["most_seconds"] is not None and found["most_seconds"] <= MOST_SECONDS,
    }


if __name__ == "__main__":
    run(main)
