"""Compares tuned input settings with a small full grid and with the defaults for 0, 2 and 4 workers.

python benchmarks/input_tuning/input_tuning.py --folder inputs --only tar_shards remote

The fastest of a grid of noisy settings is partly the luckiest. So the tuned settings, the grid's fastest and the
fastest default are measured again, in turn, and the ratios are of these measurements alone. A workload whose result is
in the folder already is not measured again.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from autosync.inputs.intervals import RateInterval, rate_interval
from autosync.inputs.tar_shards import reads_through_autosync
from autosync.inputs.trial import InputWork, run_trial
from autosync.inputs.tuning import tune_input
from autosync.specs.input_settings import InputSettings
from benchmarks.input_tuning.workloads import WORKLOADS, Workload
from benchmarks.kept_studies import kept_result
from benchmarks.shared import parser_of, report, run, tell

MOST_BEHIND = 0.03
LEAST_GAIN = 1.3
DEFAULTS = tuple(InputSettings(num_workers=number) for number in (0, 2, 4))
FINAL_ROUNDS = 8
"""How often the finalists are measured."""


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where results are kept")
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--seconds", type=float, default=3.0, help="the time of each trial")
    parser.add_argument("--rounds", type=int, default=3, help="how often each setting is measured")
    parser.add_argument("--short", action="store_true", help="a grid of four settings, for a first look")
    arguments = parser.parse_args()

    arguments.folder.mkdir(parents=True, exist_ok=True)
    how = {"seconds": arguments.seconds, "rounds": arguments.rounds, "is_short": arguments.short}
    results = {}
    for name in arguments.only:
        path = arguments.folder / f"{name}.json"
        one = results[name] = kept_result(path, functools.partial(measured, name, **how), settings=how)
        tell(f"{name}: {one['of_grid_best']:.3f} of the grid's best, {one['gain']:.2f} times the best default")
    gain = math.exp(sum(math.log(one["gain"]) for one in results.values()) / len(results))
    holds = gain >= LEAST_GAIN and all(one["of_grid_best"] >= 1 - MOST_BEHIND for one in results.values())
    document = {
        "schema": "autosync.benchmark_input_tuning/1",
        **how,
        "num_cores": len(os.sched_getaffinity(0)),
        "gain": gain,
        "holds": holds,
        "workloads": results,
    }
    return report(document, holds=holds)


def measured(name: str, **how: Any) -> dict[str, Any]:
    """Make a workload, and compare its settings."""
    with tempfile.TemporaryDirectory(prefix="autosync-input-") as folder, WORKLOADS[name](Path(folder)) as workload:
        return compared(workload, **how) | {"load": os.getloadavg()}


def grid(*, reads: bool, is_short: bool) -> list[InputSettings]:
    """Return the settings of the full grid. Sizes and numbers of requests count only for our own reader."""
    workers, prefetches = ((1, 2), (2,)) if is_short else ((0, 1, 2, 4), (2, 8))
    sizes, concurrencies = ((2**20,), (1, 16)) if is_short else ((2**18, 2**23), (1, 4, 16))
    if not reads:
        sizes, concurrencies = (2**20,), (4,)
    return [
        InputSettings(num_workers=number, prefetch_factor=ahead, read_bytes=size, read_concurrency=at_a_time)
        for number, ahead, size, at_a_time in itertools.product(workers, prefetches, sizes, concurrencies)
        # Without workers, nothing is prefetched.
        if number or ahead == prefetches[0]
    ]


def compared(workload: Workload, seconds: float, rounds: int, *, is_short: bool) -> dict[str, Any]:
    """Tune a workload; measure what was found, the grid and the defaults in turn, and the fastest of them again."""
    options: dict[str, Any] = {"batch_size": workload.batch_size, "shuffle": "shards", "prepare": workload.prepare}
    tuning = tune_input(workload.dataset, trial_seconds=seconds, **options)
    settings = list(
        dict.fromkeys(
            [
                tuning.settings,
                *DEFAULTS,
                *grid(reads=reads_through_autosync(workload.dataset), is_short=is_short),
            ]
        )
    )
    work = InputWork(dataset=workload.dataset, **options)
    rates = rates_in_turn(work, settings, seconds=seconds, rounds=rounds)
    best = max(settings, key=lambda one: rates[one].value)
    return {
        "found": dataclasses.asdict(tuning.settings),
        "num_trials": len(tuning.trials),
        "grid_best": dataclasses.asdict(best),
        "grid_rates": {"found": dataclasses.asdict(rates[tuning.settings]), "best": dataclasses.asdict(rates[best])},
        "defaults": {str(one.num_workers): dataclasses.asdict(rates[one]) for one in DEFAULTS},
        **final(work, tuning.settings, best, max(DEFAULTS, key=lambda one: rates[one].value), seconds=seconds),
    }


def final(
    work: InputWork, found: InputSettings, best: InputSettings, default: InputSettings, *, seconds: float
) -> dict[str, Any]:
    """Measure the tuned settings, the grid's best and the best default again."""
    rates = rates_in_turn(work, list(dict.fromkeys([found, best, default])), seconds=seconds, rounds=FINAL_ROUNDS)
    return {
        "found_rate": dataclasses.asdict(rates[found]),
        "grid_best_rate": dataclasses.asdict(rates[best]),
        "best_default": default.num_workers,
        "best_default_rate": dataclasses.asdict(rates[default]),
        "of_grid_best": rates[found].value / rates[best].value,
        "gain": rates[found].value / rates[default].value,
    }


def rates_in_turn(
    work: InputWork, settings: Sequence[InputSettings], *, seconds: float, rounds: int
) -> dict[InputSettings, RateInterval]:
    """Measure settings in turn, in so many rounds."""
    counts: dict[InputSettings, list[int]] = {one: [] for one in settings}
    times: dict[InputSettings, list[float]] = {one: [] for one in settings}
    for number in range(rounds):
        for one in settings:
            trial = run_trial(work, one, number=number, seconds=seconds)
            counts[one] += trial.step_counts
            times[one] += trial.step_seconds
    return {one: rate_interval(counts[one], times[one]) for one in settings}


if __name__ == "__main__":
    run(main)
