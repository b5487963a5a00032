"""Runs: one training by real gloo ranks, in processes of their own that end whatever happens.

Ranks are forks of this process, for to import the models' libraries takes each of them seconds. So nothing here may
start a thread of torch's before.
"""

from __future__ import annotations

import datetime as dt
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from training import MAX_SECONDS_FOR_A_RUN

Answer = dict[str, Any] | str
"""What a rank has to say: what its function returned, or one line of what it raised."""


def run_ranks(num_ranks: int, function: Callable[[], Any]) -> list[Answer]:
    """Call a function on every rank of a new process group; the ranks' answers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        children = [_fork(folder, rank, num_ranks, function) for rank in range(num_ranks)]
        _wait(children)
        return [_answer(folder, rank) for rank in range(num_ranks)]


def _fork(folder: Path, rank: int, num_ranks: int, function: Callable[[], Any]) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    try:
        log = os.open(folder / f"log-{rank}", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        torch.set_num_threads(1)
        store = dist.FileStore(str(folder / "store"), num_ranks)
        patience = dt.timedelta(seconds=MAX_SECONDS_FOR_A_RUN / 2)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=patience)
        try:
            answer: Any = function()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the suite has to tell
            traceback.print_exc()
            answer = f"{type(error).__name__}: {error}"
        (folder / f"part-{rank}").write_bytes(pickle.dumps(answer))
        (folder / f"part-{rank}").replace(folder / f"answer-{rank}")
    finally:
        sys.stderr.flush()
        os._exit(0)


def _wait(children: Sequence[int]) -> None:
    """Wait until all have ended, and end what has not by then."""
    deadline = time.monotonic() + MAX_SECONDS_FOR_A_RUN
    left = list(children)
    while left and time.monotonic() < deadline:
        left = [child for child in left if os.waitpid(child, os.WNOHANG)[0] == 0]
        time.sleep(0.01)
    for child in left:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _answer(folder: Path, rank: int) -> Any:
    path = folder / f"answer-{rank}"
    if path.exists():
        answer = pickle.loads(path.read_bytes())
        if not isinstance(answer, str):
            return answer
    else:
        answer = f"no answer within {MAX_SECONDS_FOR_A_RUN:.0f} seconds, or the rank crashed"
    log = (folder / f"log-{rank}").read_text(errors="replace")
    sys.stderr.write(f"rank {rank}: {answer}\n{log[-3000:]}\n")
    return answer
