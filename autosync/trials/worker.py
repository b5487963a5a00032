"""One rank of a trial: `python -m autosync.trials.worker FOLDER`.

Reads the job, trains each contestant in turn and writes down how long each step took. Whatever goes wrong becomes the
rank's answer: a trial's failure is data.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import faulthandler
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from autosync.errors import AutosyncError, OperationError
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


class RefusedError(AutosyncError):
    """A contestant's strategy cannot run here."""


class Training:
    """One contestant's model in training on this rank."""

    def __init__(self, task: Task, contestant: Contestant, job: Job, rank: int) -> None:
        torch.manual_seed(job.seed)
        self._task = task
        self._bare = build_model(task)
        self._optimizer = build_optimizer(task, self._bare.parameters())
        self._is_stock_ddp = contestant.bundle is None
        self._model: Any = self._bare
        if contestant.bundle is None:
            self._model = DistributedDataParallel(self._bare, find_unused_parameters=contestant.find_unused_parameters)
        else:
            try:
                parallelize(self._bare, self._optimizer, contestant.bundle, timeout_seconds=job.timeout_seconds)
            except AutosyncError as error:
                raise RefusedError(str(error)) from error
        self._batches = torch.Generator().manual_seed(job.seed * 1_000_003 + rank)

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
    trainings = [Training(task, contestant, job, rank) for contestant in job.contestants]
    seconds: list[list[float]] = [[] for _ in trainings]
    for training in trainings:
        for _ in range(job.num_warmup_steps):
            training.step()
    for _ in range(job.num_blocks):
        for training, measured in zip(trainings, seconds, strict=True):
            dist.barrier()
            measured.extend(training.step() for _ in range(job.num_steps))
    dist.barrier()
    # Only here: after a failure it would wait for other ranks, and the process ends anyway.
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
        # Should whoever started the ranks be gone, they end themselves, and the log says where they were.
        faulthandler.dump_traceback_later(job.timeout_seconds, exit=True)
        num_ranks = int(os.environ["WORLD_SIZE"])
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(str(folder.rendezvous.resolve()), num_ranks),  # type: ignore[attr-defined]
            rank=rank,
            world_size=num_ranks,
            timeout=dt.timedelta(seconds=job.timeout_seconds),
        )
        timings = run_job(job, rank)
        dist.destroy_process_group()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a trial's failure becomes data here
        traceback.print_exc()
        kind: Literal["refused", "raised"] = "refused" if isinstance(error, RefusedError) else "raised"
        folder.write_answer(Answer(rank=rank, error_kind=kind, error=_in_words(error), ended_at_seconds=time.time()))
        return 1
    answer = Answer(rank=rank, timings=timings, peak_memory_bytes=_peak_memory_bytes(), ended_at_seconds=time.time())
    folder.write_answer(answer)
    return 0


def _peak_memory_bytes() -> int:
    """Of this program alone: what getrusage tells includes the process that started it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OperationError("this system does not tell peak memory (VmHWM in /proc/self/status)")


def _in_words(error: BaseException) -> str:
    """What went wrong. What the engine raised within the user's backward pass is no fault of the user's line."""
    if isinstance(error.__cause__, OperationError):
        error = error.__cause__
    return str(error) if isinstance(error, AutosyncError) else f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    code = main(JobFolder(Path(sys.argv[1])))
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of a failed collective may still be in it; there is nothing left to clean up.
    os._exit(code)
