"""Measures how near a fitted all-reduce comes to the fastest that its cluster allows; see README.md.

python benchmarks/collective_fit/collective_fit.py --resume fit.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from autosync import jsonio
from autosync.plan.bound import bound
from autosync.plan.bound_terms import rates_of
from autosync.specs.background_load import BackgroundLoad
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.trials.compare import Design, compare
from autosync.trials.comparison import Comparison, Ratio
from autosync.trials.contestant import Contestant
from autosync.trials.policy import Policy
from autosync.trials.probe import ProbeSettings, probe
from autosync.trials.service import TrialService

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.clusters import MEGABIT
from benchmarks.collective_fit.contestants import FITTED, GLOO, Way, of_before, one_gradient, too_slow, ways
from benchmarks.collective_fit.shapes import SHAPES
from benchmarks.shared import parser_of, report, run, tell

SIZES = (4, 16, 48)
"""Megabytes."""
JUDGED_FROM = 16
"""The bound is a target for sizes from here on."""
FEW_HOSTS = 5
MOST_OTHER_SHARE = 0.15
"""If other programs use more of the processors, a cell says nothing, and `--resume` measures it again."""
LEAST_SHARE, LEAST_SHARE_OF_MANY = 0.90, 0.85
MOST_SHARE = 1.02
"""Nothing is faster than the bound. Where a whole interval is, the probe found rates that are too low."""
LEAST_DIFFERENCE = 0.005
"""The share from which on a difference to the fastest of the others counts."""
_TIMEOUT_SECONDS = 180.0
_ENDLESS = 1e9
_PROBE = ProbeSettings(
    num_rounds=3,
    num_trips=2,
    num_batches=2,
    num_computations=1,
    curve_bytes=(65_536,),
    point_seconds=0.1,
    num_steps=4,
    most_loads=0,
    timeout_seconds=_TIMEOUT_SECONDS,
)
"""Only the rates of links count here. Racks are stated, so none are searched for."""
_POLICY = Policy(min_warmup_steps=2, max_warmup_steps=2, window_steps=2, steps_per_run=3)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep results here, and measure what is missing")
    parser.add_argument("--only", nargs="+", choices=list(SHAPES), metavar="SHAPE", help=", ".join(SHAPES))
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, metavar="MB", help="4, 16 and 48 unless told")
    parser.add_argument("--rounds", type=int, default=9, help="of each contestant; 9 are enough for 8 contestants")
    parser.add_argument("--steps", type=int, default=2, help="all-reduces in a round")
    parser.add_argument("--limit-seconds", type=float, default=1e9, help="begin no further shape after this time")
    options = parser.parse_args()
    results = Results(options.resume)
    deadline = time.monotonic() + options.limit_seconds
    for name in options.only or SHAPES:
        missing = [size for size in options.sizes if not results.has(name, size)]
        if missing and time.monotonic() < deadline:
            measure(name, missing, options, results)
    document = results.document()
    return report(document, holds=bool(document["cells"]) and all(document["holds"].values()))


class Results:
    """The results so far, by shape and size. If they have a file, each new result is written at once."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._cells: dict[str, dict[str, Any]] = {}
        if path is not None and path.is_file():
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            self._cells = {key: {**cell, **verdicts(cell)} for key, cell in cells.items()}

    def has(self, shape: str, size: int) -> bool:
        """Return whether a cell is measured; one that other programs disturbed is not."""
        cell = self._cells.get(_key(shape, size))
        return cell is not None and not _is_disturbed(cell)

    def keep(self, shape: str, size: int, cell: dict[str, Any]) -> None:
        self._cells[_key(shape, size)] = cell
        if self._path is not None:
            jsonio.write_json(self._path, self.document())

    def document(self) -> dict[str, Any]:
        """Return the results with their summary and the targets that hold."""
        return {**summary(self._cells.values()), "cells": self._cells}


def _is_disturbed(cell: Mapping[str, Any]) -> bool:
    return bool(cell["other_cpu_share"] > MOST_OTHER_SHARE)


def _key(shape: str, size: int) -> str:
    return f"{shape}, {size} MB"


def measure(name: str, sizes: Iterable[int], options: argparse.Namespace, results: Results) -> None:
    """Probe one shape and measure all-reduces of these sizes on it."""
    tell(f"{name}: probing")
    cluster = probe(SHAPES[name](), settings=_PROBE).cluster
    for size in sizes:
        began, load = time.monotonic(), BackgroundLoad()
        cell = _measured(one_gradient(size * 1_000_000), cluster, options)
        cell |= {"shape": name, "size": size, "rates": _rates(cluster), "other_cpu_share": load.share()}
        cell["seconds"] = round(time.monotonic() - began, 1)
        results.keep(name, size, cell)
        tell(f"{_key(name, size)}: {in_words(cell)}")


def _measured(model: ModelSpec, cluster: ClusterSpec, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one size on one probed cluster."""
    found = ways(model, cluster)
    left_out = too_slow(found)
    contestants = [Contestant(name=name, bundle=way.bundle) for name, way in found.items() if name not in left_out]
    design = Design(
        num_steps=options.rounds * options.steps,
        num_rounds=options.rounds,
        budget_seconds=_ENDLESS,
        least_difference=LEAST_DIFFERENCE,
    )
    with (
        tempfile.TemporaryDirectory(prefix="autosync-fit-") as folder,
        TrialService(
            target=model.name,
            model=model,
            cluster=cluster,
            folder=Path(folder),
            timeout_seconds=_TIMEOUT_SECONDS,
        ) as service,
    ):
        comparison = compare(service, contestants, design=design, policy=_POLICY, progress=tell)
    return {**judged(comparison, model, cluster), "ways": _ways(found, comparison), "left_out": left_out}


def judged(comparison: Comparison, model: ModelSpec, cluster: ClusterSpec) -> dict[str, Any]:
    """Return how the fitted trees compare with the bound, with gloo and with the best of the others."""
    measured = comparison.measurements
    limit = bound(model, cluster, rates=rates_of(cluster))
    fitted = measured[FITTED]
    best = min(of_before(measured), key=lambda name: measured[name].median_seconds)
    over_best, over_gloo = comparison.between(FITTED, best), comparison.between(FITTED, GLOO)
    share = {
        "value": limit.seconds / fitted.median_seconds,
        "low": limit.seconds / fitted.high_seconds,
        "high": limit.seconds / fitted.low_seconds,
    }
    least = LEAST_SHARE if len(cluster.nodes) <= FEW_HOSTS else LEAST_SHARE_OF_MANY
    cell = {
        "bound_seconds": limit.seconds,
        "bound": str(limit.largest),
        "share_of_bound": share,
        "least_share": least if model.num_bytes >= JUDGED_FROM * 1_000_000 else None,
        "best_of_before": best,
        "over_best_of_before": _figures(over_best),
        "over_gloo": _figures(over_gloo),
    }
    return {**cell, **verdicts(cell)}


def verdicts(cell: Mapping[str, Any]) -> dict[str, dict[str, bool]]:
    """Return which targets a cell's values reach (`holds`), and which its whole intervals reach (`proven`)."""
    share, gain = cell["share_of_bound"], cell["over_best_of_before"]["value"]
    least = cell["least_share"] or 0.0
    not_slower = 1 / (1 + LEAST_DIFFERENCE)
    return {
        "holds": {
            "share_of_bound": share["value"] >= least and share["low"] <= MOST_SHARE,
            "not_slower": gain >= not_slower,
        },
        "proven": {
            "share_of_bound": least <= share["low"] and share["high"] <= MOST_SHARE,
            "not_slower": cell["over_best_of_before"]["low"] >= not_slower,
        },
    }


def _figures(ratio: Ratio) -> dict[str, Any]:
    speedup = ratio.speedup
    return {"value": speedup.value, "low": speedup.low, "high": speedup.high, "verdict": ratio.verdict}


def _ways(found: Mapping[str, Way], comparison: Comparison) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for name, way in found.items():
        rows[name] = {"busiest_link_seconds": way.busiest_link_seconds}
        if name in comparison.failures:
            rows[name]["failure"] = comparison.failures[name].message
        if name in comparison.measurements:
            one = comparison.measurements[name]
            seconds = {"value": one.median_seconds, "low": one.low_seconds, "high": one.high_seconds}
            rows[name] |= {"seconds": seconds, "cpu_share": one.cpu_share, "flags": list(one.flags)}
    return rows


def _rates(cluster: ClusterSpec) -> dict[str, list[float]]:
    """Return the probed rates out of and into each node and rack, in Mbit/s."""
    rates = rates_of(cluster)
    return {
        name: [round(rate / MEGABIT, 1) for rate in pair]
        for pairs in (rates.nodes, rates.racks)
        for name, pair in pairs.items()
    }


def summary(cells: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures over all cells, and the targets that hold."""
    cells = list(cells)
    judged_cells = [cell for cell in cells if cell["least_share"] is not None]
    gains = [cell["over_best_of_before"]["value"] for cell in cells]
    return {
        "num_shapes": len({cell["shape"] for cell in cells}),
        "num_cells": len(cells),
        "least_share_of_bound": min((cell["share_of_bound"]["value"] for cell in judged_cells), default=None),
        "mean_share_of_bound": _mean([cell["share_of_bound"]["value"] for cell in judged_cells]),
        "least_over_best_of_before": min(gains, default=None),
        "mean_over_best_of_before": _mean(gains),
        "mean_over_gloo": _mean([cell["over_gloo"]["value"] for cell in cells]),
        "holds": {
            "share_of_bound": all(cell["holds"]["share_of_bound"] for cell in cells),
            "not_slower": all(cell["holds"]["not_slower"] for cell in cells),
            "undisturbed": not any(map(_is_disturbed, cells)),
        },
        "missed": [_key(cell["shape"], cell["size"]) for cell in cells if not all(cell["holds"].values())],
        "disturbed": [_key(cell["shape"], cell["size"]) for cell in cells if _is_disturbed(cell)],
        "not_proven": [_key(cell["shape"], cell["size"]) for cell in cells if not all(cell["proven"].values())],
    }


def _mean(values: list[float]) -> float | None:
    return statistics.geometric_mean(values) if values else None


def in_words(cell: Mapping[str, Any]) -> str:
    """Return a line about a cell."""
    share, gain = cell["share_of_bound"], cell["over_best_of_before"]
    told = f"{share['value']:.3f} ({share['low']:.3f} to {share['high']:.3f}) of the bound"
    interval = f"({gain['low']:.3f} to {gain['high']:.3f})"
    return f"{told}, {gain['value']:.3f} times as fast as {cell['best_of_before']} {interval}"


if __name__ == "__main__":
    run(main)
