"""Measures the runtime against stock DDP: `python benchmarks/runtime_cost/runtime_vs_ddp.py > runtime.json`.

Compute is real, on local ranks with one thread each, without the trial service between. In every scenario each
contestant has its own model in the same processes. They take blocks of steps in turn, in a random order for each round,
and ratios have 95 % intervals over the rounds (see autosync/trials/statistics.py). Contestants:

- `ddp`: torch's DistributedDataParallel with its default buckets, but without broadcasting buffers, as in our engine;
- `stock`: our preset of the same buckets, which stock DDP can express and torch's Reducer runs;
- `engine`: the same bundle, run by our own engine;
- `bare`: the same training without synchronisation;
- `ddp_dense`: DDP on a model whose tables have dense gradients (the engine's have sparse ones).

Scenarios: `convnet` (25 million parameters), `transformer` (10 million), `many` (1,000 small parameters: the step's
time beyond `bare` for each parameter) and `sparse` (tables of 100,000 users and items, 1 % of them touched). In
`sparse` only the engine has sparse gradients: torch 2.13's own all-reduce of them on gloo sometimes aborts the process,
so there is no `ddp`, and no plan with them runs as `stock`. Peak memory is measured separately, for every contestant
alone in new processes. A refused contestant is reported with the reason, and its bounds do not hold. Ends with 1 unless
all bounds hold.

All ranks run as batch processes (SCHED_BATCH), as on a testbed. Otherwise the benchmark would measure the scheduler:
gloo's thread of a connection spins while another thread holds the connection. If the two share a core, a spinning
thread that has just woken up keeps the core until the next tick. `--scheduler other` keeps the system's scheduler.

--device cuda puts models and batches on the GPU: gloo then copies through the host, and all ranks share the device.
"""

from __future__ import annotations

import argparse
import datetime as dt
import gc
import inspect
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from autosync.datasets.schema import seconds_of_steps
from autosync.plan.bundling import bundled
from autosync.runtime.parallelize import parallelize, release
from autosync.specs.profile.run import profile
from autosync.specs.task_run import map_tensors
from autosync.strategy.bundle import load_bundle, save_bundle
from autosync.strategy.presets import build_preset
from autosync.trials import meters
from autosync.trials.statistics import Interval, min_rounds, round_ratio

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.clusters import on_this_machine
from benchmarks.runtime_cost.tasks import TASKS
from benchmarks.shared import end_ranks, parser_of, report, run, start_ranks, tell

LIMIT_SECONDS = 1800.0
NUM_WARMUP_STEPS = 5


class Scenario(NamedTuple):
    """The contestants and the allowed figures of a scenario.

    `bounds` are the largest allowed ratios of a contestant's time to that of `reference`, and `memory` those of its
    peak.
    """

    contestants: tuple[str, ...]
    reference: str
    bounds: dict[str, float]
    memory: dict[str, float]
    microseconds: dict[str, float]
    """The most microseconds for each parameter beyond `reference`."""


SCENARIOS = {
    "convnet": Scenario(
        ("ddp", "stock", "engine"), "ddp", {"stock": 1.02, "engine": 1.05}, {"stock": 1.05, "engine": 1.05}, {}
    ),
    "transformer": Scenario(
        ("ddp", "stock", "engine"), "ddp", {"stock": 1.02, "engine": 1.05}, {"stock": 1.05, "engine": 1.05}, {}
    ),
    "many": Scenario(("bare", "ddp", "stock", "engine"), "bare", {}, {}, {"stock": 15.0, "engine": 15.0}),
    "sparse": Scenario(("ddp_dense", "engine"), "ddp_dense", {"engine": 1 / 5}, {}, {}),
}


class Contestant:
    """A model in training on this rank. The constructor raises if its kind is refused."""

    def __init__(self, scenario: str, kind: str, *, device: str, bundle: Path, rank: int) -> None:
        self._task = TASKS["dense" if kind == "ddp_dense" else scenario]()
        torch.manual_seed(1)
        self._bare = self._task.model().to(device)
        self._model: Any = self._bare
        self._optimizer = self._task.optimizer(self._bare.parameters())
        self._batches = torch.Generator().manual_seed(rank)
        self._device = torch.device(device)
        self._is_ours = kind in ("stock", "engine")
        if kind.startswith("ddp"):
            self._model = DistributedDataParallel(self._bare, **_without_buffers())
        elif self._is_ours:
            given = load_bundle(bundle)
            parallelize(self._bare, self._optimizer, given, timeout_seconds=60.0, hand_off=kind == "stock")

    def step(self) -> float:
        """Run one optimizer step; return its seconds."""
        batch = map_tensors(self._task.batch(self._batches), lambda tensor: tensor.to(self._device))
        _synchronize(self._device)
        start = time.perf_counter()
        self._optimizer.zero_grad()
        loss: Any = self._task.loss(self._model, batch)
        loss.backward()
        self._optimizer.step()
        _synchronize(self._device)
        return time.perf_counter() - start

    def release(self) -> None:
        if self._is_ours:
            release(self._bare)


def _without_buffers() -> dict[str, Any]:
    names = inspect.signature(DistributedDataParallel).parameters
    # If both names exist, the older one warns.
    return {"forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers": False}


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def run_rank(job: dict[str, Any], rank: int) -> None:
    """Run one rank of a launch: all contestants in turn, or one alone for its memory."""
    folder = Path(job["folder"])
    if job["scheduler"] == "batch":
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / f"rendezvous-{job['launch']}"), job["num_ranks"])
    limit = dt.timedelta(seconds=120)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=job["num_ranks"], timeout=limit)
    result = _memory_of(job, rank) if job["alone"] else _times_of(job, rank)
    (folder / f"result-{job['launch']}-{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def _made(job: dict[str, Any], kind: str, rank: int) -> Contestant | str:
    """Return a contestant after its first steps, or why it is refused. All ranks must agree, or the launch fails."""
    try:
        made = Contestant(
            job["scenario"], kind, device=job["device"], bundle=Path(job["folder"]) / job["bundle"], rank=rank
        )
        for _ in range(NUM_WARMUP_STEPS):
            made.step()
    except Exception as error:  # noqa: BLE001 - whatever it is refused with belongs into the result
        return f"{type(error).__name__}: {error}"
    return made


def _times_of(job: dict[str, Any], rank: int) -> dict[str, Any]:
    made = {kind: _made(job, kind, rank) for kind in job["contestants"]}
    refused = {kind: one for kind, one in made.items() if isinstance(one, str)}
    field = {kind: one for kind, one in made.items() if isinstance(one, Contestant)}
    blocks: dict[str, list[list[float]]] = {kind: [] for kind in field}
    lots = random.Random(0)
    for _ in range(job["rounds"]):
        for kind in lots.sample(list(field), len(field)):
            gc.collect()
            dist.barrier()
            # The first step of a block finds the caches filled by another contestant.
            field[kind].step()
            blocks[kind].append([field[kind].step() for _ in range(job["steps"])])
    for one in field.values():
        one.release()
    return {"blocks": blocks, "refused": refused}


def _memory_of(job: dict[str, Any], rank: int) -> dict[str, Any]:
    (kind,) = job["contestants"]
    is_cuda = job["device"] == "cuda"
    meters.reset_peak_memory()
    before = meters.peak_memory_bytes() or 0
    made = _made(job, kind, rank)
    if isinstance(made, str):
        return {"refused": {kind: made}}
    for _ in range(3):
        made.step()
    peak = torch.cuda.max_memory_allocated() if is_cuda else meters.peak_memory_bytes() or 0
    made.release()
    return {"refused": {}, "peak_bytes": peak, "grown_bytes": peak if is_cuda else peak - before}


class Launcher:
    """Starts ranks and reads their results."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder = folder
        self._options = options
        self._num_launches = 0

    def run(self, scenario: str, contestants: Sequence[str], *, alone: bool) -> list[dict[str, Any]]:
        """Return each rank's result."""
        self._num_launches += 1
        job = {
            "folder": str(self._folder),
            "launch": self._num_launches,
            "scenario": scenario,
            "bundle": f"{scenario}.yaml",
            "contestants": list(contestants),
            "alone": alone,
            "device": self._options.device,
            "num_ranks": self._options.ranks,
            "rounds": self._options.rounds,
            "steps": self._options.steps,
            "scheduler": self._options.scheduler,
        }
        words = json.dumps(job)
        ranks = [start_ranks(__file__, "--as-rank", rank, "--job", words) for rank in range(self._options.ranks)]
        try:
            codes = [rank.wait(LIMIT_SECONDS) for rank in ranks]
        finally:
            for rank in ranks:
                end_ranks(rank)
        if any(codes):
            raise RuntimeError(f"{scenario} with {', '.join(contestants)}: ranks ended with {codes}")
        return [self._result(rank) for rank in range(self._options.ranks)]

    def _result(self, rank: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._folder / f"result-{self._num_launches}-{rank}.json").read_text())
        return found


def write_bundle(scenario: str, num_ranks: int, path: Path) -> dict[str, Any]:
    """Write the preset of DDP's buckets for a scenario's model; return its facts for the report."""
    cluster = on_this_machine(num_ranks)
    model = profile(TASKS[scenario](), device="cpu")
    strategy = build_preset("ddp", model, cluster)
    save_bundle(path, bundled(strategy, model, cluster))
    return {
        "num_parameters": len(model.variables),
        "num_elements": sum(variable.num_elements for variable in model.variables),
        "num_buckets": len(strategy.messages),
    }


def time_scenario(name: str, launcher: Launcher, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the step times of a scenario's contestants, and whether its bounds hold."""
    scenario = SCENARIOS[name]
    ranks = launcher.run(name, scenario.contestants, alone=False)
    refused = {kind: words for rank in ranks for kind, words in rank["refused"].items()}
    blocks = {
        kind: [seconds_of_steps(both) for both in zip(*(rank["blocks"][kind] for rank in ranks), strict=True)]
        for kind in ranks[0]["blocks"]
        if kind not in refused
    }
    reference_seconds = median(seconds for block in blocks[scenario.reference] for seconds in block)
    found: dict[str, Any] = {}
    for kind, own in blocks.items():
        ratio = round_ratio(own, blocks[scenario.reference])
        found[kind] = {"median_seconds": median(seconds for block in own for seconds in block), "ratio": _figure(ratio)}
        if scenario.microseconds:
            scale = reference_seconds * 1e6 / facts["num_parameters"]
            beyond = ((bound - 1) * scale for bound in (ratio.value, ratio.low, ratio.high))
            found[kind]["microseconds_a_parameter"] = dict(zip(("value", "low", "high"), beyond, strict=True))
    bounds = [
        *(_bound("ratio", kind, bound, found, refused) for kind, bound in scenario.bounds.items()),
        *(
            _bound("microseconds_a_parameter", kind, bound, found, refused)
            for kind, bound in scenario.microseconds.items()
        ),
    ]
    return {**facts, "reference": scenario.reference, "contestants": found, "refused": refused, "bounds": bounds}


def measure_memory(name: str, launcher: Launcher, repeats: int) -> dict[str, Any]:
    """Return the peak memory of a scenario's contestants, each alone in new processes, in turn."""
    scenario = SCENARIOS[name]
    peaks: dict[str, list[tuple[int, int]]] = {}
    refused: dict[str, str] = {}
    for _ in range(repeats):
        for kind in scenario.contestants:
            ranks = launcher.run(name, [kind], alone=True)
            refused.update(ranks[0]["refused"])
            if not ranks[0]["refused"]:
                most = max(ranks, key=lambda rank: rank["peak_bytes"])
                peaks.setdefault(kind, []).append((most["peak_bytes"], most["grown_bytes"]))
    found: dict[str, Any] = {}
    for kind, own in peaks.items():
        ratios = [one[0] / other[0] for one, other in zip(own, peaks[scenario.reference], strict=True)]
        grown = [one[1] / other[1] for one, other in zip(own, peaks[scenario.reference], strict=True)]
        found[kind] = {
            "peak_bytes": [one[0] for one in own],
            # The memory of models, gradients, optimizers and buffers, without the program itself.
            "grown_bytes": [one[1] for one in own],
            "ratio": {"value": median(ratios), "low": min(ratios), "high": max(ratios)},
            "ratio_grown": {"value": median(grown), "low": min(grown), "high": max(grown)},
        }
    bounds = [_bound("ratio", kind, bound, found, refused) for kind, bound in scenario.memory.items()]
    return {"reference": scenario.reference, "contestants": found, "refused": refused, "bounds": bounds}


def _bound(
    figure: str, kind: str, bound: float, found: dict[str, Any], refused: dict[str, str]
) -> dict[str, float | str | bool]:
    """Return whether a bound holds for the figure itself, and is proven for its whole interval."""
    if kind in refused:
        return {"contestant": kind, "figure": figure, "bound": bound, "holds": False, "refused": refused[kind]}
    value = found[kind][figure]
    return {
        "contestant": kind,
        "figure": figure,
        "bound": bound,
        "holds": value["value"] <= bound,
        "proven": value["high"] <= bound,
    }


def _figure(interval: Interval) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS), help="this one (may be repeated)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20, help=f"{min_rounds()} at least, or there is no interval")
    parser.add_argument("--steps", type=int, default=8, help="of each contestant in each round")
    parser.add_argument("--memory-repeats", type=int, default=3, help="0: no memory is measured")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--scheduler", default="batch", choices=["batch", "other"])
    parser.add_argument("--as-rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank is not None:
        run_rank(json.loads(options.job), options.as_rank)
        return 0
    if options.rounds < min_rounds():
        parser.error(f"--rounds {options.rounds}: {min_rounds()} or more")
    torch.set_num_threads(1)
    began = time.monotonic()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher(Path(folder), options)
        for name in options.scenario or SCENARIOS:
            tell(f"{name}: step times")
            facts = write_bundle(name, options.ranks, Path(folder) / f"{name}.yaml")
            results[name] = time_scenario(name, launcher, facts)
            if options.memory_repeats and SCENARIOS[name].memory:
                tell(f"{name}: peak memory")
                results[name]["memory"] = measure_memory(name, launcher, options.memory_repeats)
    bounds = [b for r in results.values() for b in (*r["bounds"], *r.get("memory", {}).get("bounds", ()))]
    summary = {
        "device": torch.cuda.get_device_name() if options.device == "cuda" else f"cpu, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "scheduler": options.scheduler,
        "num_ranks": options.ranks,
        "num_rounds": options.rounds,
        "steps_a_round": options.steps,
        "num_bounds": len(bounds),
        "num_held": sum(bool(bound["holds"]) for bound in bounds),
        "num_proven": sum(bool(bound.get("proven")) for bound in bounds),
        "load_at_end": os.getloadavg()[0],
        "seconds": round(time.monotonic() - began, 1),
        "scenarios": results,
    }
    return report(summary, holds=summary["num_held"] == summary["num_bounds"])


if __name__ == "__main__":
    run(main)
