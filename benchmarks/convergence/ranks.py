"""The ranks of `convergence.py`: `python ranks.py FOLDER NUM_RANKS` trains the runs in FOLDER/runs.json.

The ranks are forks of this process, and train the runs in succession. After each, FOLDER/result-RUN-RANK.json has the
losses of all its steps on this rank's data, or the reason why it failed.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from autosync.runtime.parallelize import parallelize, release

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.convergence.tasks import TRAININGS, Setting, schedule
from benchmarks.shared import fork_ranks

NUM_EVALUATED = 32
"""The number of batches of new data that each rank is evaluated on at the end."""


def train(run: dict[str, Any], rank: int) -> dict[str, Any]:
    """Train one run on one rank. All ranks begin with the same parameters, and each has its own data."""
    began = time.monotonic()
    setting = Setting(learning_rate=run["learning_rate"], momentum=run["momentum"], clip_norm=run["clip_norm"])
    task = TRAININGS[run["training"]].make(setting)
    torch.manual_seed(run["seed"])
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    scheduler = schedule(optimizer, run["num_steps"])
    batches = torch.Generator().manual_seed(1_000 * run["seed"] + rank)
    called: torch.nn.Module = model
    if run["bundle"] is None:
        called = _with_torchs_hook(model)
    else:
        parallelize(model, optimizer, run["bundle"], timeout_seconds=60)
    losses = []
    try:
        for _ in range(run["num_steps"]):
            optimizer.zero_grad()
            loss = task.loss(called, task.batch(batches))
            loss.backward()  # type: ignore[no-untyped-call]
            if setting.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), setting.clip_norm)
            optimizer.step()
            scheduler.step()
            losses.append(loss.detach())
    finally:
        if run["bundle"] is not None:
            release(model)
    with torch.no_grad():
        new = torch.Generator().manual_seed(10_000 + rank)
        evaluated = sum(float(task.loss(model, task.batch(new))) for _ in range(NUM_EVALUATED)) / NUM_EVALUATED
    return {
        "losses": torch.stack(losses).tolist(),
        "evaluation": evaluated,
        "seconds": time.monotonic() - began,
        "failure": "",
    }


def _with_torchs_hook(model: torch.nn.Module) -> torch.nn.Module:
    """Return stock DDP with torch's own PowerSGD from the third step on, because it cannot begin earlier."""
    called = DistributedDataParallel(model)
    state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=4, start_powerSGD_iter=2)
    called.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return called


def run_rank(folder: Path, rank: int, num_ranks: int) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "rendezvous"), num_ranks)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=dt.timedelta(seconds=60))
    for number, run in enumerate(json.loads((folder / "runs.json").read_text())):
        dist.barrier()
        try:
            result = train(run, rank)
        except Exception as error:  # noqa: BLE001 - that a training fails (diverges, say) is a result
            result = {"failure": f"{type(error).__name__}: {error}"}
        path = folder / f"result-{number}-{rank}.json"
        path.with_suffix(".new").write_text(json.dumps(result))
        path.with_suffix(".new").rename(path)
    dist.barrier()
    dist.destroy_process_group()


def main(folder: Path, num_ranks: int) -> None:
    fork_ranks([functools.partial(run_rank, folder, rank, num_ranks) for rank in range(num_ranks)])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
