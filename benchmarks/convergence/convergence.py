"""Trains with codecs, late updates and rare averages, and compares the final losses with exact training.

    python benchmarks/convergence/convergence.py > out.json
    python benchmarks/convergence/convergence.py --read out.json --markdown table.md --pictures docs/pictures

Trains a character-level transformer and a convolutional network (`tasks.py`) on ranks on this machine, with stock DDP's
buckets, with each strategy of `contestants.py`, and with torch's own PowerSGD for comparison. All contestants of a seed
begin with the same parameters and see the same batches. Learning rates and momenta are the best for the exact run; the
other contestants have the same.

The final loss is the mean over the last twentieth of the steps (all of them on new data) and all ranks. Each
contestant's is divided by the exact run's of the same seed. The promises (2 % for bf16, PowerSGD and top-k with error
feedback) apply to the mean of these ratios over the seeds. The document also has the loss on new data after the
training's end.

Prints one JSON document; ends with 1 unless all promises hold, or if no contestant with one was trained.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from autosync.specs.profile.run import profile
from autosync.strategy.bundle import save_bundle

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.clusters import on_this_machine
from benchmarks.convergence.contestants import CONTESTANTS, EXACT, Contestant, applies, bundle_of, bytes_a_step
from benchmarks.convergence.report import markdown, write_pictures
from benchmarks.convergence.tasks import TRAININGS
from benchmarks.shared import end_ranks, parser_of, run, start_ranks, tell

HERE = Path(__file__).parent
FINAL_SHARE = 1 / 20
NUM_POINTS = 50
"""The number of points of a curve; each is the mean of equally many steps."""
STEP_LIMIT_SECONDS = 0.5


def train_all(runs: Sequence[dict[str, Any]], folder: Path, num_ranks: int) -> list[list[dict[str, Any]]]:
    """Return each run's results by rank."""
    (folder / "runs.json").write_text(json.dumps(runs))
    limit_seconds = 60 + STEP_LIMIT_SECONDS * sum(run["num_steps"] for run in runs)
    process = start_ranks(HERE / "ranks.py", folder, num_ranks)
    paths = [[folder / f"result-{number}-{rank}.json" for rank in range(num_ranks)] for number in range(len(runs))]
    began, num_told = time.monotonic(), 0
    try:
        while process.poll() is None and time.monotonic() < began + limit_seconds:
            time.sleep(0.5)
            while num_told < len(runs) and all(path.exists() for path in paths[num_told]):
                tell(f"  {_told(runs[num_told], paths[num_told])}")
                num_told += 1
    finally:
        end_ranks(process)
    missing = {"failure": "no result: the ranks died or took too long"}
    return [[json.loads(path.read_text()) if path.exists() else missing for path in one] for one in paths]


def _told(run: dict[str, Any], paths: Sequence[Path]) -> str:
    results = [json.loads(path.read_text()) for path in paths]
    failure = next((one["failure"] for one in results if one["failure"]), "")
    words = failure or f"{final_loss(mean_losses(results)):.4f} after {results[0]['seconds']:.1f} s"
    return f"{run['contestant']}, {_setting(run)}, seed {run['seed']}: {words}"


def _setting(fields: dict[str, Any]) -> str:
    return f"rate {fields['learning_rate']:g}, momentum {fields['momentum']:g}"


def mean_losses(results: Sequence[dict[str, Any]]) -> list[float]:
    """Return each step's mean loss over all ranks."""
    return [fmean(both) for both in zip(*(one["losses"] for one in results), strict=True)]


def final_loss(losses: Sequence[float]) -> float:
    """Return the mean of the last steps."""
    return fmean(losses[-max(1, round(len(losses) * FINAL_SHARE)) :])


def curve_of(losses: Sequence[float]) -> list[tuple[int, float]]:
    """Return (last step, mean loss) of stretches of equal length."""
    length = max(1, len(losses) // NUM_POINTS)
    starts = range(0, len(losses) - length + 1, length)
    return [(start + length, fmean(losses[start : start + length])) for start in starts]


def compare(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train all contestants with all seeds. Return each contestant's final distance from exact training."""
    training = TRAININGS[name]
    num_steps = options.steps or training.num_steps
    model, cluster = profile(training.make(training.setting), steps=1), on_this_machine(*(1,) * options.ranks)
    chosen = [one for one in CONTESTANTS if not options.contestant or one.name in (*options.contestant, EXACT)]
    # Momentum correction is for SGD's momentum and replaces it.
    bare = profile(training.make(replace(training.setting, momentum=0.0)), steps=1)
    chosen = [one for one in chosen if not (one.corrects_momentum and model.optimizer.name != "SGD")]
    chosen = [one for one in chosen if applies(one, bare if one.corrects_momentum else model, cluster)]
    num_bytes: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        paths: dict[str, str | None] = {}
        for number, contestant in enumerate(chosen):
            spec = bare if contestant.corrects_momentum else model
            bundle = bundle_of(contestant, spec, cluster, momentum=training.setting.momentum)
            paths[contestant.name] = None
            if bundle is not None:
                num_bytes[contestant.name] = bytes_a_step(bundle)
                paths[contestant.name] = str(Path(folder) / f"bundle-{number}.yaml")
                save_bundle(Path(folder) / f"bundle-{number}.yaml", bundle)
        runs = [
            {
                "training": name,
                "contestant": contestant.name,
                "bundle": paths[contestant.name],
                "seed": seed,
                "num_steps": num_steps,
                "learning_rate": training.setting.learning_rate,
                "momentum": 0.0 if contestant.corrects_momentum else training.setting.momentum,
                "clip_norm": training.setting.clip_norm,
            }
            for seed in range(options.seeds)
            for contestant in chosen
        ]
        results = train_all(runs, Path(folder), options.ranks)
    of: dict[str, list[list[dict[str, Any]]]] = {contestant.name: [] for contestant in chosen}
    for one, result in zip(runs, results, strict=True):
        of[str(one["contestant"])].append(result)
    return {
        "num_parameters": model.num_parameters,
        "num_steps": num_steps,
        **asdict(training.setting),
        "contestants": {
            contestant.name: {
                "kind": contestant.kind,
                "bytes_a_step": num_bytes.get(contestant.name),
                **judged(contestant, of[contestant.name], of[EXACT]),
            }
            for contestant in chosen
        },
    }


def judged(
    contestant: Contestant, own: Sequence[Sequence[dict[str, Any]]], exact: Sequence[Sequence[dict[str, Any]]]
) -> dict[str, Any]:
    """Return a contestant's results of all seeds, compared with the exact run's."""
    failures = sorted({rank["failure"] for one in (*own, *exact) for rank in one if rank["failure"]})
    if not failures and not all(math.isfinite(loss) for one in own for rank in one for loss in rank["losses"]):
        failures = ["diverged: a loss is no number"]
    if failures:
        return {"failures": failures, "bound": contestant.bound, "holds": contestant.bound is None}
    losses = [mean_losses(one) for one in own]
    finals = [final_loss(one) for one in losses]
    ratios = [mine / final_loss(mean_losses(other)) for mine, other in zip(finals, exact, strict=True)]
    evaluations = [fmean(rank["evaluation"] for rank in one) for one in own]
    exacts = [fmean(rank["evaluation"] for rank in one) for one in exact]
    curves = [curve_of(one) for one in losses]
    return {
        "final_loss": _spread(finals),
        "ratio": _spread(ratios),
        "evaluation": _spread(evaluations),
        "evaluation_ratio": _spread([mine / other for mine, other in zip(evaluations, exacts, strict=True)]),
        "curve": [(points[0][0], fmean(loss for _, loss in points)) for points in zip(*curves, strict=True)],
        "seconds": _spread([one[0]["seconds"] for one in own]),
        "failures": [],
        "bound": contestant.bound,
        "holds": contestant.bound is None or fmean(ratios) <= contestant.bound,
    }


def _spread(values: Sequence[float]) -> dict[str, Any]:
    return {"mean": fmean(values), "low": min(values), "high": max(values), "each": list(values)}


def arguments_of(command_line: list[str] | None = None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, default=2, choices=[2, 4])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="other than each training's own number")
    parser.add_argument("--training", action="append", choices=list(TRAININGS), help="this one (may be repeated)")
    names = [one.name for one in CONTESTANTS]
    parser.add_argument("--contestant", action="append", choices=names, help="beside the exact run (may be repeated)")
    parser.add_argument("--read", type=Path, help="an earlier run's document, instead of training")
    parser.add_argument("--markdown", type=Path, help="write the tables there")
    parser.add_argument("--pictures", type=Path, help="write the curves into this folder")
    return parser.parse_args(command_line)


def trained(options: argparse.Namespace) -> dict[str, Any]:
    """Train everything that the options ask for; return the document."""
    began = time.monotonic()
    torch.set_num_threads(1)
    results = {}
    for name in options.training or TRAININGS:
        tell(name)
        results[name] = compare(name, options)
    promised = [
        one for result in results.values() for one in result.get("contestants", {}).values() if one["bound"] is not None
    ]
    return {
        "torch": torch.__version__,
        "num_ranks": options.ranks,
        "num_seeds": options.seeds,
        "num_promises": len(promised),
        "num_kept": sum(one["holds"] for one in promised),
        "seconds": round(time.monotonic() - began, 1),
        "trainings": results,
    }


def main() -> int:
    """Run from the command line."""
    options = arguments_of()
    document = json.loads(options.read.read_text()) if options.read else trained(options)
    # Printed first, because the rest may fail after hours of training.
    print(json.dumps(document))
    if options.markdown:
        options.markdown.write_text(markdown(document))
    if options.pictures:
        write_pictures(document, options.pictures)
    return 0 if document["num_kept"] == document["num_promises"] > 0 else 1


if __name__ == "__main__":
    run(main)
