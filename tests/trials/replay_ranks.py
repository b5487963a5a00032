"""Ranks that synchronise a replayed spec: `python replay_ranks.py FOLDER NUM_RANKS`.

FOLDER has the spec as model.yaml, and strategies' bundles. What gradients each way of synchronising them leaves after
each of two steps goes to FOLDER/gradients-WAY-RANK.pt.
"""

import datetime as dt
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DDP and optimizers import it late, so that each rank would do so
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from autosync import parallelize
from autosync.runtime.parallelize import release
from autosync.specs.model_file import load_model
from autosync.specs.task_run import build_model, build_optimizer, compute_loss, draw_batch, run_backward, step_optimizer
from autosync.trials.replay import replay_task

NUM_STEPS = 2


def lots(rank: int) -> torch.Generator:
    """What batches are drawn by: others on each rank."""
    return torch.Generator().manual_seed(1 + rank)


def steps(folder: Path, way: str, synchronise: Callable[[Any, Any], Any]) -> None:
    """Train for some steps and write down the gradients that the optimizer found."""
    task = replay_task(load_model(str(folder / "model.yaml")))
    bare = build_model(task)
    optimizer = build_optimizer(task, bare.parameters())
    model = synchronise(bare, optimizer)
    generator = lots(dist.get_rank())
    found = []
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        run_backward(task, compute_loss(task, model, draw_batch(task, generator)))
        found.append({n: p.grad.clone() for n, p in bare.named_parameters() if p.grad is not None})
        step_optimizer(task, optimizer)
    torch.save(found, folder / f"gradients-{way}-{dist.get_rank()}.pt")
    if model is bare:
        release(bare)


def run_rank(folder: Path, rank: int, num_ranks: int) -> None:
    store = dist.FileStore(str(folder / "rendezvous"), num_ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=dt.timedelta(seconds=30))
    steps(folder, "stock", lambda model, _: DistributedDataParallel(model))
    for bundle in sorted(folder.glob("*.bundle.yaml")):
        way = bundle.name.removesuffix(".bundle.yaml")
        steps(folder, way, lambda m, o, b=bundle: parallelize(m, o, b)[0])


def main(folder: Path, num_ranks: int) -> None:
    children = []
    for rank in range(num_ranks):
        child = os.fork()
        if not child:
            try:
                # Before the fork it would leave a pool of threads behind that is made anew by whoever comes first.
                torch.set_num_threads(1)
                run_rank(folder, rank, num_ranks)
            except Exception:  # noqa: BLE001 - it is told, and the test misses this rank's gradients
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
