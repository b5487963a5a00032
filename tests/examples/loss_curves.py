"""Checks that unchanged training scripts have the same loss curves under stock DDP and under exact strategies.

    python tests/examples/loss_curves.py > out.json

The scripts are those of `examples/training`, each run as torchrun would run it: without `--bundle` by stock DDP, with
it by a strategy. Nothing else differs. Ranks are processes on this machine (gloo over loopback).

The tolerance is measured too. Exact strategies round otherwise than DDP, and training amplifies roundings. So stock DDP
runs again with every gradient changed by one rounding in each step (`--yardsticks` times, with different signs). A
curve passes if at every step its largest distance from DDP's curve so far is within one of two limits: 10 times the
largest distance of these runs so far (a sum of several numbers rounds more than one number), or 16 roundings of the
loss itself. That is about 1e-14 in float64 and 1e-6 in float32. Under autocast it is more, because there a rounding can
change a number of half the size. Other buckets would not serve as the measure: on two ranks, a sum of two numbers has
only one order. DDP with other buckets runs as one more contestant. A lossy strategy runs as a control: its curve must
not pass in the most precise type of numbers that a script has (losses in float32 may be too coarse to tell).

Prints one JSON document. For each script and type of numbers it has each strategy's largest relative difference from
DDP's curve, also as a share of its tolerance, and the seconds; and the refusals with their reasons. The exit code is 1
unless all strategies pass, the controls do not, and each script has passed under at least three strategies.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosync.plan.bundling import bundled
from autosync.strategy.bundle import Bundle, save_bundle

sys.path.insert(0, str(Path(__file__).parent))
from curve_cases import BUILDERS, CONTROL, SCRIPTS, Script, cluster_of, model_of, strategies

HERE = Path(__file__).parent
FACTOR = 10.0
NUM_LOSS_ROUNDINGS = 16
MIN_STRATEGIES = 3
RUN_LIMIT_SECONDS = 120.0
SMALL_BUCKETS = "stock DDP, buckets of 16 kB"
REFUSAL = "its factors are then not those of its gradient"
"""Factors under autocast: that a layer computes in another type is known only when it does."""

Curve = list[float]


class Ranks:
    """Runs scripts on ranks, one after the other in one launch."""

    def __init__(self, folder: Path, *, num_ranks: int) -> None:
        self._folder = folder
        self._num_ranks = num_ranks
        self._runs: list[dict[str, Any]] = []
        self._stores: list[Any] = []

    def add(self, title: str, script: Script, dtype: str, bundle: Bundle | None = None, **options: Any) -> int:
        """One more run; its number."""
        number = len(self._runs)
        path = self._folder / f"bundle-{number}.yaml"
        if bundle is not None:
            save_bundle(path, bundle)
        # torchrun keeps the store for the ranks as well: no port is taken that another may have taken meanwhile.
        store: Any = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        self._stores.append(store)
        log = self._folder / f"losses-{number}.json"
        arguments = [*script.arguments, "--losses", str(log)] + ([] if bundle is None else ["--bundle", str(path)])
        self._runs.append(
            {
                "number": number,
                "title": title,
                "script": str(script.path),
                "arguments": arguments,
                "dtype": dtype,
                "num_ranks": self._num_ranks,
                "port": self._stores[-1].port,
                "limit_seconds": RUN_LIMIT_SECONDS,
                "rounding_seed": None,
                "bucket_cap_mb": None,
                **options,
            }
        )
        return number

    def run(self) -> list[dict[str, Any]]:
        """What came of each run: its losses, or why it failed."""
        (self._folder / "runs.json").write_text(json.dumps(self._runs))
        process = subprocess.Popen(
            (sys.executable, HERE / "curve_ranks.py", self._folder),
            env={"GLOO_SOCKET_IFNAME": "lo", **os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,
        )
        try:
            process.wait(60 + RUN_LIMIT_SECONDS * len(self._runs))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        outcomes = json.loads((self._folder / "outcomes.json").read_text())
        for number, outcome in enumerate(outcomes):
            log = self._folder / f"losses-{number}.json"
            outcome["losses"] = json.loads(log.read_text()) if log.exists() and not outcome["failure"] else None
        return list(outcomes)


class Comparison:
    """A script with numbers of one type, by everything that there is. The runs are begun first, and judged later."""

    def __init__(self, name: str, dtype: str, ranks: Ranks, options: argparse.Namespace) -> None:
        script = SCRIPTS[name]
        cluster, model = cluster_of(options.ranks), model_of(script, dtype)
        self._name = name
        self._dtype = dtype
        self._refused: dict[str, str] = {}
        about = f"{name}, {dtype}"
        self._reference = ranks.add(f"{about}: stock DDP", script, dtype)
        self._yardsticks = [
            ranks.add(f"{about}: stock DDP, rounding otherwise", script, dtype, rounding_seed=seed)
            for seed in range(options.yardsticks)
        ]
        self._runs: dict[str, int] = {}
        if _is_wanted(SMALL_BUCKETS, options.strategy):
            self._runs[SMALL_BUCKETS] = ranks.add(f"{about}: {SMALL_BUCKETS}", script, dtype, bucket_cap_mb=16 / 1024)
        for kind, strategy in strategies(model, cluster, seed=options.seed, num_random=options.random):
            if not _is_wanted(kind, options.strategy):
                continue
            if isinstance(strategy, str):
                self._refused[kind] = strategy
            else:
                bundle = bundled(strategy, model, cluster)
                self._runs[kind] = ranks.add(f"{about}: {kind}", script, dtype, bundle)

    def judge(self, outcomes: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Each curve held against stock DDP's."""
        for number in (self._reference, *self._yardsticks):
            if outcomes[number]["failure"]:
                raise RuntimeError(f"{self._name} under stock DDP: {outcomes[number]['failure']}")
        curve: Curve = outcomes[self._reference]["losses"]
        limits = tolerances(curve, [outcomes[number]["losses"] for number in self._yardsticks], self._dtype)
        refused = dict(self._refused)
        found: dict[str, dict[str, Any]] = {}
        for kind, number in self._runs.items():
            if REFUSAL in outcomes[number]["failure"]:
                refused[kind] = outcomes[number]["failure"]
            else:
                found[kind] = held(outcomes[number], curve, limits)
        control = found.pop(CONTROL, None)
        return {
            "script": self._name,
            "dtype": self._dtype,
            "num_losses": len(curve),
            "first_loss": curve[0],
            "last_loss": curve[-1],
            "largest_tolerance": limits[-1],
            "ddp_seconds": outcomes[self._reference]["seconds"],
            "strategies": found,
            "num_passed": sum(one["passes"] for kind, one in found.items() if kind != SMALL_BUCKETS),
            "control": control and {**control, "is_told_apart": not control["passes"]},
            "refused": refused,
        }


def _is_wanted(kind: str, wanted: Sequence[str] | None) -> bool:
    return not wanted or kind in wanted or kind == CONTROL or kind.startswith("random ")


def differences(curve: Curve, reference: Curve) -> list[float]:
    """How far a curve has been from another up to each step, relative."""
    found, largest = [], 0.0
    for one, other in zip(curve, reference, strict=True):
        largest = max(largest, abs(one - other) / abs(other))
        found.append(largest)
    return found


def tolerances(reference: Curve, yardsticks: Sequence[Curve], dtype: str) -> list[float]:
    """How far a curve may have been from the reference up to each step, relative."""
    least = NUM_LOSS_ROUNDINGS * torch.finfo(getattr(torch, dtype)).eps
    usual = [differences(curve, reference) for curve in yardsticks]
    return [max(least, FACTOR * max(at_step)) for at_step in zip(*usual, strict=True)]


def held(outcome: dict[str, Any], reference: Curve, limits: Sequence[float]) -> dict[str, Any]:
    """A run's curve held against the reference."""
    if outcome["failure"]:
        return {"passes": False, "failure": outcome["failure"], "seconds": outcome["seconds"]}
    if len(outcome["losses"]) != len(reference) or not all(map(math.isfinite, outcome["losses"])):
        words = f"{len(outcome['losses'])} losses where DDP has {len(reference)}, or one that is no number"
        return {"passes": False, "failure": words, "seconds": outcome["seconds"]}
    found = differences(outcome["losses"], reference)
    shares = [one / limit for one, limit in zip(found, limits, strict=True)]
    return {
        "passes": all(share <= 1 for share in shares),
        "largest_difference": found[-1],
        "largest_share_of_tolerance": max(shares),
        "seconds": outcome["seconds"],
    }


def controlled(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results whose controls count: of each script that of the most precise numbers, which come first.

    In float32 a loss's own rounding may hide what bfloat16 does to the gradients of a few steps.
    """
    first = {one["script"]: one for one in reversed(results)}
    return [one for one in first.values() if one["control"] is not None]


def arguments_of(command_line: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2, choices=[2, 4])
    parser.add_argument("--script", action="append", choices=list(SCRIPTS), help="this one (may be repeated)")
    parser.add_argument("--dtype", choices=["float64", "float32"], help="only numbers of this type")
    parser.add_argument("--one-dtype", action="store_true", help="float32 only for scripts that cannot have float64")
    parser.add_argument(
        "--strategy",
        action="append",
        choices=[SMALL_BUCKETS, *BUILDERS],
        help="beside the control and what is drawn (may be repeated)",
    )
    parser.add_argument("--random", type=int, default=2, help="how many strategies drawn from the space (default 2)")
    parser.add_argument("--yardsticks", type=int, default=3, help="runs of DDP that round otherwise (default 3)")
    parser.add_argument("--seed", type=int, default=0, help="of the strategies that are drawn")
    return parser.parse_args(command_line)


def main() -> int:
    """Run from the command line."""
    options = arguments_of()
    began = time.monotonic()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        ranks = Ranks(Path(folder), num_ranks=options.ranks)
        comparisons = [
            Comparison(name, dtype, ranks, options)
            for name in options.script or SCRIPTS
            for dtype in SCRIPTS[name].dtypes[: 1 if options.one_dtype else None]
            if options.dtype in (None, dtype)
        ]
        outcomes = ranks.run()
    results = [comparison.judge(outcomes) for comparison in comparisons]
    document = {
        "torch": torch.__version__,
        "num_ranks": options.ranks,
        "num_curves": sum(len(one["strategies"]) for one in results),
        "num_failed": sum(not held["passes"] for one in results for held in one["strategies"].values()),
        "fewest_strategies": min(one["num_passed"] for one in results),
        "controls_told_apart": sum(bool(one["control"]["is_told_apart"]) for one in controlled(results)),
        "num_controls": len(controlled(results)),
        "seconds": round(time.monotonic() - began, 1),
        "results": results,
    }
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    is_right = not document["num_failed"] and document["controls_told_apart"] == document["num_controls"]
    return 0 if is_right and document["fewest_strategies"] >= MIN_STRATEGIES else 1


if __name__ == "__main__":
    sys.exit(main())
