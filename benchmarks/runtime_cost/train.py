"""An ordinary script with stock DDP: `train.py TASK STEPS OUT`. It writes the seconds of each step to OUT.RANK."""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.runtime_cost.tasks import TASKS


def main() -> None:
    task, num_steps, out = TASKS[sys.argv[1]](), int(sys.argv[2]), Path(sys.argv[3])
    # As on a testbed: the module's docstring of runtime_vs_ddp.py says why.
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = DistributedDataParallel(task.model())
    optimizer = task.optimizer(model.parameters())
    batches = torch.Generator().manual_seed(dist.get_rank())
    seconds = []
    for _ in range(num_steps):
        batch = task.batch(batches)
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = task.loss(model, batch)
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    out.with_suffix(f".{dist.get_rank()}").write_text(json.dumps(seconds))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
