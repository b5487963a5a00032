"""How often a strategy is found to differ from itself: `python benchmarks/compare_with_itself.py > self.json`.

Compares one strategy with itself on a cluster, again and again, each time prepared anew under a seed of its own, and
counts the differences found: with and without the least difference that `autosync compare` asks for. All comparisons
share one trial service. Ends with 1 where more than a tenth of the comparisons claim a difference.

With --against OTHER the two are compared instead, and it ends with 1 unless every comparison finds OTHER faster.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from autosync.errors import AutosyncError
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import model_of
from autosync.specs.task_file import is_task
from autosync.trials.compare import DEFAULT_DESIGN, Comparison, compare
from autosync.trials.entrants import entrants
from autosync.trials.service import TrialService


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mobilenet_v2")
    parser.add_argument("--cluster", default="4-hosts")
    parser.add_argument("--strategy", default="ddp")
    parser.add_argument("--against", metavar="OTHER")
    parser.add_argument("--count", type=int, default=20, choices=range(1, 1001), metavar="N")
    parser.add_argument("--steps", type=int, default=36)
    parser.add_argument("--budget-seconds", type=float, default=60.0)
    parser.add_argument("--limit-seconds", type=float, default=3600.0, help="begin no comparison after this time")
    options = parser.parse_args()
    model, cluster = model_of(options.model), load_cluster(options.cluster)
    names = [options.strategy, options.against or options.strategy]
    contestants = entrants(names, model, cluster, is_replayed=not is_task(options.model))
    design = replace(DEFAULT_DESIGN, num_steps=options.steps, budget_seconds=options.budget_seconds)
    began = time.monotonic()
    results: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        TrialService(target=options.model, model=model, cluster=cluster, folder=Path(folder)) as service,
    ):
        for seed in range(options.count):
            if time.monotonic() - began > options.limit_seconds:
                break
            results.append(_result(compare(service, contestants, design=design, seed=seed)))
            print(f"{seed + 1} of {options.count}: {results[-1]['in_words']}", file=sys.stderr, flush=True)
    found = [result["verdict"] for result in results if result["verdict"] != "no difference found"]
    strict = [result for result in results if result["low"] > 1 or result["high"] < 1]
    summary = {
        "contestants": [contestant.name for contestant in contestants],
        "model": model.name,
        "cluster": cluster.name,
        "num_comparisons": len(results),
        "num_differences_found": len(found),
        "num_found_without_least_difference": len(strict),
        "seconds": round(time.monotonic() - began, 1),
        "results": results,
    }
    print(json.dumps(summary, indent=2))
    if not results:
        return 1
    if options.against:
        return 0 if found == ["faster"] * len(results) else 1
    return 0 if len(found) * 10 <= len(results) else 1


def _result(comparison: Comparison) -> dict[str, Any]:
    (ratio,) = comparison.ratios
    return {
        "verdict": ratio.verdict,
        "value": ratio.speedup.value,
        "low": ratio.speedup.low,
        "high": ratio.speedup.high,
        "median_seconds": {name: one.median_seconds for name, one in comparison.measurements.items()},
        "cpu_share": max(one.cpu_share or 0.0 for one in comparison.measurements.values()),
        "in_words": str(ratio),
    }


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AutosyncError as error:
        sys.exit(f"error: {error}")
