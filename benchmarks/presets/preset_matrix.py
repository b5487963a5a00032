"""Checks every preset on every shipped model and cluster: built, legal, unchanged after a file round trip, lowered.

    python benchmarks/presets/preset_matrix.py > out.json
    python benchmarks/presets/preset_matrix.py --run --markdown docs/preset-matrix.md > out.json

Each cluster is tried as it ships and on NCCL. Prints one JSON document: how many strategies were built, how many were
refused for which reasons, each failure, and the time in seconds.

With `--run` every preset runs on real ranks of every shipped cluster of up to 8 hosts, and the trained parameters are
compared with the preset's definition (`runs.py`). The document then has a cell for each preset on each cluster.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster, shipped_clusters
from autosync.specs.model_file import load_model, shipped_models
from autosync.strategy.presets import preset_names
from autosync.testing.presets import check_preset

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.presets.runs import cluster_names, markdown, run_all
from benchmarks.shared import parser_of, report, run


def clusters() -> Iterator[tuple[str, ClusterSpec]]:
    """Yield the shipped clusters by name, each also on NCCL."""
    for name in shipped_clusters():
        cluster = load_cluster(name)
        yield name, cluster
        if cluster.backend != "nccl":
            yield f"{name} on nccl", replace(cluster, backend="nccl")


def try_all(presets: Sequence[str], models: Sequence[str]) -> dict[str, Any]:
    """Try each cell of the matrix; return the outcomes as one document."""
    began = time.perf_counter()
    targets = dict(clusters())
    built: Counter[str] = Counter()
    refused: dict[str, Counter[str]] = {}
    failures: list[dict[str, str]] = []
    slowest = {"seconds": 0.0}
    for model_name in models:
        model = load_model(model_name)
        for preset in presets:
            for cluster_name, cluster in targets.items():
                place = {"preset": preset, "model": model_name, "cluster": cluster_name}
                start = time.perf_counter()
                try:
                    check_preset(preset, model, cluster)
                    built[preset] += 1
                except DoesNotApplyError as error:
                    # The rule is the reason, because the details differ from cell to cell.
                    reason = "; ".join(sorted({problem.rule for problem in error.problems}))
                    refused.setdefault(preset, Counter())[reason] += 1
                except Exception as error:  # noqa: BLE001 - whatever goes wrong is a failure of the preset, to be reported with its place
                    failures.append({**place, "why": f"{type(error).__name__}: {error}"})
                seconds = round(time.perf_counter() - start, 3)
                slowest = max(slowest, {**place, "seconds": seconds}, key=lambda cell: cell["seconds"])
    return {
        "presets": len(presets),
        "models": len(models),
        "clusters": len(targets),
        "built": built.total(),
        "built_by_preset": dict(built),
        "refused": sum(counts.total() for counts in refused.values()),
        "refused_by_preset": {preset: dict(counts) for preset, counts in refused.items()},
        "failed": len(failures),
        "failures": failures,
        "slowest": slowest,
        "seconds": round(time.perf_counter() - began, 1),
    }


def run_on_ranks(
    presets: Sequence[str], clusters: Sequence[str], limit_seconds: float, table: Path | None
) -> dict[str, Any]:
    """Run each cell of the matrix; return the outcomes as one document."""
    began = time.perf_counter()
    cells = run_all(presets, clusters, limit_seconds)
    if table is not None:
        table.write_text(markdown(cells), encoding="utf-8")
    outcomes = Counter(cell["outcome"] for cell in cells)
    return {
        "presets": len(presets),
        "clusters": len(clusters),
        "cells": len(cells),
        "ran": outcomes["ran"],
        "trained": outcomes["trained"],
        "refused": outcomes["refused"],
        "failed": outcomes["failed"],
        "seconds": round(time.perf_counter() - began, 1),
        "by_cell": cells,
    }


def main() -> int:
    """Run from the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--preset", action="append", choices=preset_names(), help="this preset (may be repeated)")
    parser.add_argument("--model", action="append", choices=list(shipped_models()), help="this model (may be repeated)")
    parser.add_argument("--run", action="store_true", help="run them on real ranks")
    parser.add_argument(
        "--cluster", action="append", choices=cluster_names(), help="with --run: here (may be repeated)"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="with --run: write the table here too")
    parser.add_argument("--limit-seconds", type=float, default=2400.0, help="with --run: begin nothing after this time")
    arguments = parser.parse_args()
    presets = arguments.preset or preset_names()
    if arguments.run:
        result = run_on_ranks(
            presets, arguments.cluster or cluster_names(), arguments.limit_seconds, arguments.markdown
        )
    else:
        result = try_all(presets, arguments.model or list(shipped_models()))
    return report(result, holds=not result["failed"])


if __name__ == "__main__":
    run(main)
