"""How far separate trials of one strategy differ: `python benchmarks/trial_noise.py --count 10 > noise.json`.

Each strategy is measured that many times, each time in a trial of its own, all on one trial service and in turn, in an
order drawn by lot for each round. What is told is the coefficient of variation of the trials' medians with its 95 %
interval. Ends with 1 where that of any strategy is 1 % or more.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autosync.datasets.schema import Measurement
from autosync.errors import AutosyncError
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import model_of
from autosync.specs.task_file import is_task
from autosync.trials.entrants import entrants
from autosync.trials.policy import DEFAULT_POLICY, measure
from autosync.trials.service import TrialService

BOUND = 0.01
STRATEGIES = ("ddp", "torch-ddp", "sharded")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mobilenet_v2")
    parser.add_argument("--cluster", default="4-hosts")
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    parser.add_argument("--count", type=int, default=10, help="trials of each, two or more")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-seconds", type=float, default=1800.0, help="begin no round after this time")
    options = parser.parse_args()
    model, cluster = model_of(options.model), load_cluster(options.cluster)
    entered = entrants(options.strategies, model, cluster, is_replayed=not is_task(options.model))
    contestants = {one.name: one for one in entered}
    lots = random.Random(options.seed)
    began = time.monotonic()
    trials: dict[str, list[Measurement]] = {name: [] for name in contestants}
    with (
        tempfile.TemporaryDirectory() as folder,
        TrialService(target=options.model, model=model, cluster=cluster, folder=Path(folder)) as service,
    ):
        for number in range(options.count):
            if time.monotonic() - began > options.limit_seconds:
                break
            for name in lots.sample(list(contestants), len(contestants)):
                trials[name].append(measure(service, contestants[name], DEFAULT_POLICY))
                print(
                    f"{number + 1} of {options.count}: {_in_words(name, trials[name][-1])}", file=sys.stderr, flush=True
                )
    results = {name: summary(measured) for name, measured in trials.items()}
    worst = max(result["variation"] for result in results.values())
    document = {
        "bound": BOUND,
        "worst_variation": worst,
        "model": model.name,
        "cluster": cluster.name,
        "num_rounds": min(len(measured) for measured in trials.values()),
        "seconds": round(time.monotonic() - began, 1),
        "strategies": results,
    }
    print(json.dumps(document, indent=2))
    return 0 if worst < BOUND else 1


def summary(measured: Sequence[Measurement]) -> dict[str, Any]:
    """What the trials of one strategy came to."""
    medians = np.array([one.median_seconds for one in measured])
    variation = float(np.std(medians, ddof=1) / np.mean(medians))
    low, high = _variation_interval(variation, len(medians))
    return {
        "variation": variation,
        "low": low,
        "high": high,
        "mean_seconds": float(np.mean(medians)),
        # How wide the interval is that one trial gives itself: half of it, as a share of the median.
        "own_interval_share": float(
            np.median([(one.high_seconds - one.low_seconds) / one.median_seconds / 2 for one in measured])
        ),
        "cpu_share": max(one.cpu_share or 0.0 for one in measured),
        "trials": [
            {
                "median_seconds": one.median_seconds,
                "low_seconds": one.low_seconds,
                "high_seconds": one.high_seconds,
                "num_warmup_steps": one.num_warmup_steps,
                "num_steps": len(one.step_seconds[0]),
                "cpu_share": one.cpu_share,
                "flags": one.flags,
            }
            for one in measured
        ],
    }


def _variation_interval(variation: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a coefficient of variation far below 1, of normal medians: chi-squared, by simulation."""
    sums = np.random.default_rng(0).chisquare(count - 1, 200_000)
    low, high = np.quantile(sums, [0.025, 0.975])
    return variation * float(np.sqrt((count - 1) / high)), variation * float(np.sqrt((count - 1) / low))


def _in_words(name: str, one: Measurement) -> str:
    interval = f"{one.low_seconds * 1000:.2f} to {one.high_seconds * 1000:.2f}"
    flags = f", {', '.join(one.flags)}" if one.flags else ""
    return f"{name} {one.median_seconds * 1000:.2f} ms ({interval}), CPU {one.cpu_share or 0:.0%}{flags}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AutosyncError as error:
        sys.exit(f"error: {error}")
