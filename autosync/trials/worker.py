"""One rank of a trial: `python -m autosync.trials.worker FOLDER`.

Reads the job, trains each contestant in turn and writes down how long each step took. Whatever goes wrong becomes the
rank's answer: a trial's failure is data.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import resource
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from autosync.errors import AutosyncError
from autosync.runtime.parallelize import no_sync, parallelize, release
from autosync.specs.task import Task
from autosync.specs.task_file import load_task
from autosync.specs.task_run import (
    build_model,
    build_optimizer,
    compute_loss,
    draw_batch,
    run_backward,
    step_optimizer,
)
from autosync.trials.job import Answer, Contestant, Job, JobFolder, Timing


class Training:
    """One contestant's model in training on this rank."""

    def __init__(self, task: Task, contestant: Contestant, seed: int, rank: int) -> None:
        torch.manual_seed(seed)
        self._task = task
        self._bare = build_model(task)
        self._optimizer = build_optimizer(task, self._bare.parameters())
        self._is_stock_ddp = contestant.is_stock_ddp
        self._model: Any = self._bare
        if self._is_stock_ddp:
            self._model = DistributedDataParallel(self._bare)
        else:
            assert contestant.bundle is not None, "a contestant is stock DDP or has a bundle"
            parallelize(self._bare, self._optimizer, contestant.bundle)
        self._batches = torch.Generator().manual_seed(seed * 1_000_003 + rank)

    def step(self) -> float:
        """One optimizer step; its seconds."""
        task = self._task
        batches = [draw_batch(task, self._batches) for _ in range(task.accumulation_steps)]
        start = time.perf_counter()
        self._optimizer.zero_grad()
        for batch in batches[:-1]:
            with self._without_sync():
                run_backward(task, compute_loss(task, self._model, batch))
        run_backward(task, compute_loss(task, self._model, batches[-1]))
        if task.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._bare.parameters(), task.clip_norm)
        step_optimizer(task, self._optimizer)
        return time.perf_counter() - start

    def _without_sync(self) -> contextlib.AbstractContextManager[None]:
        if self._is_stock_ddp:
            context: contextlib.AbstractContextManager[None] = self._model.no_sync()
            return context
        return no_sync(self._bare)

    def close(self) -> None:
        if not self._is_stock_ddp:
            release(self._bare)


def run_job(job: Job, rank: int) -> tuple[Timing, ...]:
    """Train every contestant: warm up each, then measure them in turn."""
    task = load_task(job.task)
    trainings = [Training(task, contestant, job.seed, rank) for contestant in job.contestants]
    seconds: list[list[float]] = [[] for _ in trainings]
    try:
        for training in trainings:
            for _ in range(job.num_warmup_steps):
                training.step()
        for _ in range(job.num_blocks):
            for training, measured in zip(trainings, seconds, strict=True):
                dist.barrier()
                measured.extend(training.step() for _ in range(job.num_steps))
        dist.barrier()
    finally:
        for training in trainings:
            training.close()
    return tuple(
        Timing(name=contestant.name, step_seconds=tuple(measured))
        for contestant, measured in zip(job.contestants, seconds, strict=True)
    )


def main(folder: JobFolder) -> int:
    """Run this rank's part of a job; 0 if it was measured."""
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    try:
        job = folder.read_job()
        dist.init_process_group(
            "gloo",
            init_method=folder.rendezvous.resolve().as_uri(),
            rank=rank,
            world_size=int(os.environ["WORLD_SIZE"]),
            timeout=dt.timedelta(seconds=job.timeout_seconds),
        )
        timings = run_job(job, rank)
        dist.destroy_process_group()
    except AutosyncError as error:
        folder.write_answer(Answer(rank=rank, error_kind="refused", error=str(error)))
        return 1
    except Exception as error:  # noqa: BLE001 - a trial's failure becomes data here
        traceback.print_exc()
        folder.write_answer(Answer(rank=rank, error_kind="raised", error=f"{type(error).__name__}: {error}"))
        return 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    folder.write_answer(Answer(rank=rank, timings=timings, peak_memory_bytes=peak))
    return 0


if __name__ == "__main__":
    code = main(JobFolder(Path(sys.argv[1])))
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of a failed collective may still be in it; there is nothing left to clean up.
    os._exit(code)
