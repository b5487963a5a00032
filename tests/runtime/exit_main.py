"""Scripts that end in one way or another: `python exit_main.py FOLDER` runs those of FOLDER/cases.json.

Each case is [bundle, task, way]: two ranks train and end as scripts do, by coming to their end, with the interpreter
torn down behind them. Printed are each rank's exit codes, a line a case. The ranks are forks of this process, for to
import torch takes each of them seconds.
"""

import datetime as dt
import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
import tasks

import autosync

NUM_RANKS = 2
NUM_STEPS = 3
LIMIT_SECONDS = 60
WRONG = 1
"""Who goes wrong, where somebody does."""


def train(store: str, rank: int, bundle: str, name: str, way: str) -> None:
    torch.set_num_threads(1)
    wait = dt.timedelta(seconds=LIMIT_SECONDS)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=NUM_RANKS, timeout=wait)
    task = getattr(tasks, name)()
    torch.manual_seed(0)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    autosync.parallelize(model, optimizer, bundle, timeout_seconds=LIMIT_SECONDS)
    generator = torch.Generator().manual_seed(rank)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        loss = task.loss(model, task.batch(generator))
        if rank == WRONG and step == NUM_STEPS - 1:
            if way == "raises":
                raise ValueError("this rank goes wrong")
            if way == "exits":
                sys.exit(7)
        loss.backward()
        if rank == WRONG and step == NUM_STEPS - 1 and way == "raises before its step":
            raise ValueError("this rank goes wrong")
        optimizer.step()
    if way == "destroys the group":
        dist.destroy_process_group()


def codes_of(folder: Path, number: int, bundle: str, name: str, way: str) -> list[int] | None:
    """Each rank's exit code; None in a rank itself, which is to come to its end."""
    children = []
    for rank in range(NUM_RANKS):
        child = os.fork()
        if not child:
            signal.alarm(LIMIT_SECONDS)
            train(str(folder / f"meeting-{number}"), rank, bundle, name, way)
            return None
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def main(folder: Path) -> None:
    # What the first optimizer imports takes a second as well, and so does what `parallelize` does.
    torch.optim.SGD([torch.zeros(1)])
    assert autosync.parallelize
    for number, (bundle, name, way) in enumerate(json.loads((folder / "cases.json").read_text())):
        codes = codes_of(folder, number, bundle, name, way)
        if codes is None:
            return
        print(json.dumps(codes), flush=True)  # noqa: T201 a script reports by printing


if __name__ == "__main__":
    main(Path(sys.argv[1]))
