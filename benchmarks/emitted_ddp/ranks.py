"""One rank of a plain torch training: `python ranks.py EMITTED.py MEETING NUM_STEPS OUT.json`.

It does not use autosync: the emitted file wraps the model in DDP, and steps are timed in the ordinary way.
"""

import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.emitted_ddp.model import draw, loss, make_model, optimizer

NUM_WARMUP_STEPS = 8


def main(emitted: str, meeting: str, num_steps: int, out: str) -> None:
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    torch.manual_seed(0)
    bare = make_model()
    model = _load(emitted).wrap(bare)
    updates = optimizer(bare.parameters())
    generator = torch.Generator().manual_seed(rank)
    seconds = []
    for _ in range(NUM_WARMUP_STEPS + num_steps):
        batch = draw(generator)
        start = time.perf_counter()
        updates.zero_grad()
        loss(model, batch).backward()
        updates.step()
        seconds.append(time.perf_counter() - start)
    slowest = torch.tensor(seconds[NUM_WARMUP_STEPS:], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if rank == 0:
        Path(out).write_text(json.dumps(slowest.tolist()), encoding="utf-8")
    dist.destroy_process_group()


def _load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("emitted", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
