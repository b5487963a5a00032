"""A rank that trains twice, with the doctor's watch and without it, and prints both results as one line of JSON."""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autosync.doctor.watch import Watch

NUM_STEPS = 6


class Model(nn.Module):
    """A table with sparse gradients, buffers, and a layer that may stay unused."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 8, sparse=True)
        self.norm = nn.BatchNorm1d(8)
        self.used, self.unused = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.used(self.norm(self.table(rows)))


def train(rank: int) -> list[float]:
    """Train with two microsteps a step, of which the last synchronises; return the weights."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(), find_unused_parameters=True, bucket_cap_mb=0.0001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.Generator().manual_seed(rank)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        with model.no_sync():
            model(torch.randint(50, (16,), generator=batches)).square().mean().backward()
        model(torch.randint(50, (16,), generator=batches)).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            model(torch.randint(50, (16,), generator=batches))
    return [float(number) for one in model.state_dict().values() for number in one.flatten()]


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    before, backward = dict(vars(DistributedDataParallel)), torch.autograd.backward
    stock = train(rank)
    stepped: list[int] = []
    watch = Watch(lambda one: stepped.append(len(one.notes.steps)))
    watch.notes.keeps_gradients = True
    with watch.open():
        watched = train(rank)
    steps = watch.notes.steps
    told = {
        "equal": stock == watched,
        "put_back": before == dict(vars(DistributedDataParallel)) and torch.autograd.backward is backward,
        "stepped": stepped,
        "passes": [len(step.passes) for step in steps],
        "synchronised": [[len(one.messages) for one in step.passes] for step in steps],
        "gradients": [len(one.gradients) for step in steps for one in step.passes if one.messages],
        "searched": all(one.search_seconds > 0 for step in steps for one in step.passes if one.messages),
        "buffers": steps[0].passes[0].buffer_seconds > 0,
        "num_unused": watch.settings().num_unused,
        "find_unused_parameters": watch.settings().find_unused_parameters,
        "variables": {one.name: [one.num_bytes, one.least_bytes] for one in watch.variables()},
    }
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
