"""Data loaders, processes and threads of the script's."""

import os
import signal
import sys
import threading
import time
from typing import Any

import torch
from environment import Env, Values, behaviour, enter, momentum, numbers, task
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Rows(Dataset[Tensor]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, number: int) -> Tensor:
        return numbers(torch.Generator().manual_seed(number))[0]


def _loads(e: Env, **options: Any) -> Values:
    run = e.start(task(optimizer=momentum))
    sampler: Any = DistributedSampler(Rows(), e.ranks, e.rank)
    loader = DataLoader(Rows(), batch_size=4, sampler=sampler, **options)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:
            run.optimizer.zero_grad()
            run.loss(batch).backward()
            run.optimizer.step()
    return run.values()


enter("data_loader", _loads, group="processes")
enter("data_loader_with_workers", lambda e: _loads(e, num_workers=1), group="processes")
enter(
    "data_loader_with_workers_that_stay",
    lambda e: _loads(e, num_workers=1, persistent_workers=True),
    group="processes",
)


def _ends(pid: int) -> str:
    """How a child ends; it gets ten seconds."""
    for _ in range(100):
        got, status = os.waitpid(pid, os.WNOHANG)
        if got:
            return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "killed"


def _forks(e: Env, end: Any) -> Values:
    """A child of one rank ends while the parent trains on."""
    run = e.start(task(optimizer=momentum))
    run.steps(2)
    ended = ""
    if e.rank == 0:
        pid = os.fork()
        if not pid:
            end()
        ended = _ends(pid)
    run.steps(2)
    return {"ended": ended, **run.values()}


def _exits() -> None:
    """As an interpreter ends: with what was registered to be called then."""
    import atexit

    try:
        atexit._run_exitfuncs()
    finally:
        os._exit(0)


enter("fork_that_exits", lambda e: _forks(e, _exits), group="processes")
enter("fork_that_leaves_at_once", lambda e: _forks(e, lambda: os._exit(0)), group="processes")
enter("fork_that_is_killed", lambda e: _forks(e, lambda: os.kill(os.getpid(), signal.SIGKILL)), group="processes")


@behaviour
def subprocess_in_the_midst(e: Env) -> Values:
    import subprocess

    run = e.start(task(optimizer=momentum))
    run.steps(2)
    done = subprocess.run([sys.executable, "-c", "print(3)"], capture_output=True, text=True, check=True, timeout=15)
    run.steps(2)
    return {"said": done.stdout, **run.values()}


@behaviour
def trains_in_a_thread(e: Env) -> Values:
    """The whole training loop runs in a thread that is not the main one."""
    run = e.start(task(optimizer=momentum))
    errors: list[BaseException] = []

    def train() -> None:
        try:
            run.steps(4)
        except BaseException as error:  # noqa: BLE001 - it is raised by the script's main thread
            errors.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return run.values()


@behaviour
def backward_in_another_thread(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    errors: list[BaseException] = []

    def backward(loss: Tensor) -> None:
        try:
            loss.backward()
        except BaseException as error:  # noqa: BLE001 - it is raised by the script's main thread
            errors.append(error)

    for _ in range(3):
        run.optimizer.zero_grad()
        thread = threading.Thread(target=backward, args=(run.loss(),))
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        run.optimizer.step()
    return run.values()


@behaviour
def evaluates_in_a_thread(e: Env) -> Values:
    """A thread evaluates while the main one waits."""
    run = e.start(task(optimizer=momentum))
    found: list[Tensor] = []

    def look() -> None:
        with torch.no_grad():
            found.append(run.model(torch.ones(2, 5, dtype=torch.float64)).clone())

    for _ in range(3):
        run.step()
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    return {"found": found, **run.values()}
