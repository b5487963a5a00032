"""Ranks that run buckets on torch's Reducer, beside stock DDP: `python stock_ranks.py FOLDER NUM_RANKS`.

Every case of `stock_cases.py` runs on all ranks, in one launch. The answers go to FOLDER/answers-RANK.json by name.
"""

import datetime as dt
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DDP and optimizers import it late, so that each rank would do so
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from stock_cases import CASES


def run_rank(folder: Path, rank: int, num_ranks: int) -> None:
    store = dist.FileStore(str(folder / "rendezvous"), num_ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=dt.timedelta(seconds=30))
    answers: dict[str, Any] = {}
    for name, function in CASES.items():
        try:
            answers[name] = function()
        except Exception as error:  # noqa: BLE001 - whatever it is, the test must hear of it
            answers[name] = f"{type(error).__name__}: {error}"
        (folder / f"answers-{rank}.json").write_text(json.dumps(answers))


def main(folder: Path, num_ranks: int) -> None:
    children = []
    for rank in range(num_ranks):
        child = os.fork()
        if not child:
            try:
                # Before the fork it would leave a pool of threads behind that is made anew by whoever comes first.
                torch.set_num_threads(1)
                run_rank(folder, rank, num_ranks)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
