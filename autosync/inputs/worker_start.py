"""Prepares the workers of a loader, stops them for a while, and names the one that failed."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker as torch_worker

from autosync.errors import OperationError
from autosync.right_of_way import adopt, marks
from autosync.specs.input_settings import InputSettings

_WORKER_FAILED = re.compile(r"DataLoader worker \(pid|DataLoader timed out|Pin memory thread exited")
# The kernel closes the connections of a process that dies before it tells the parent.
_DEATH_SECONDS = 2.0


class WorkerStart:
    """Prepares a worker: its number of threads, its process number for messages about it, and the marks of its rank.

    Code that asks torch for the worker's dataset gets the user's, not what wraps it.
    """

    def __init__(self, settings: InputSettings, more: Callable[[int], None] | None) -> None:
        self.processes = multiprocessing.get_context().Array("q", max(settings.num_workers, 1), lock=False)
        self._num_threads = settings.worker_threads
        self._more = more
        self._marks = marks().shared

    def __call__(self, worker: int) -> None:
        self.processes[worker] = os.getpid()
        torch.set_num_threads(self._num_threads)
        adopt(self._marks)
        info: Any = get_worker_info()
        torch_worker._worker_info = replace(info, dataset=info.dataset.dataset)  # noqa: SLF001 - torch has no other way
        if self._more is not None:
            self._more(worker)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the workers that run."""
        running = _running()
        for process in self.processes:
            if process in running:
                os.kill(process, number)

    def await_death(self) -> None:
        """Raise torch's error for a worker that ends within moments, after a connection to one broke."""
        deadline = time.monotonic() + _DEATH_SECONDS
        while any(self.processes) and time.monotonic() < deadline:
            running = _running()
            ended = [str(process) for process in self.processes if process and process not in running]
            if ended:
                raise RuntimeError(f"DataLoader worker (pid(s) {', '.join(ended)}) exited unexpectedly")
            time.sleep(0.01)

    def explained(self, error: RuntimeError) -> OperationError:
        """Return an error that names the worker that ended."""
        words = str(error).strip()
        named = {int(number) for number in re.findall(r"\d+", words)}
        known = [worker for worker, process in enumerate(self.processes) if process and process in named]
        who = f"worker {', '.join(map(str, known))}" if known else "a worker"
        return OperationError(f"{who} of the input pipeline on {socket.gethostname()} failed: {words}")


def _running() -> set[int | None]:
    return {child.pid for child in multiprocessing.active_children()}


def tells_failure(error: RuntimeError) -> bool:
    """Whether an error of torch tells that a worker ended or did not answer."""
    return _WORKER_FAILED.match(str(error).strip()) is not None
