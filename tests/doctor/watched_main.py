"""A rank that trains twice, with the doctor's watch and without it, and prints both results as one line of JSON."""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from autosync.doctor.watch import Watch

NUM_STEPS = 6
BATCH_SECONDS = 0.016
"""The least time that a batch of the loader takes."""


class Model(nn.Module):
    """A table with sparse gradients, buffers, and a layer that may stay unused."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 8, sparse=True)
        self.norm = nn.BatchNorm1d(8)
        self.used, self.unused = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.used(self.norm(self.table(rows)))


class Rows(Dataset):
    """Rows of the table, each of which takes some time."""

    def __len__(self) -> int:
        return 16 * NUM_STEPS

    def __getitem__(self, number: int) -> int:
        time.sleep(BATCH_SECONDS / 16)
        return number % 50


def train(rank: int) -> list[float]:
    """Train with two microsteps a step, of which the last synchronises; return the weights.

    One step more overflows, and the scaler skips its update.
    """
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(), find_unused_parameters=True, bucket_cap_mb=0.0001)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    batches = torch.Generator().manual_seed(rank)

    def step(rows: torch.Tensor, factor: float = 1.0) -> None:
        optimizer.zero_grad()
        with model.no_sync():
            scaler.scale(model(torch.randint(50, (16,), generator=batches)).square().mean()).backward()
        scaler.scale(factor * model(rows).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()

    for number, rows in enumerate(DataLoader(Rows(), batch_size=16)):
        step(rows)
        if number == NUM_STEPS // 2:
            step(rows, factor=float("inf"))
        with torch.no_grad():
            model(torch.randint(50, (16,), generator=batches))
    return [float(number) for one in model.state_dict().values() for number in one.flatten()]


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    before, backward = dict(vars(DistributedDataParallel)), torch.autograd.backward
    next_batch, scaled_step = _BaseDataLoaderIter.__next__, torch.amp.GradScaler.step
    stock = train(rank)
    stepped: list[int] = []
    watch = Watch(lambda one: stepped.append(len(one.notes.steps)))
    watch.notes.keeps_gradients = True
    with watch.open():
        watched = train(rank)
    steps = watch.notes.steps
    told = {
        "equal": stock == watched,
        "put_back": before == dict(vars(DistributedDataParallel))
        and torch.autograd.backward is backward
        and _BaseDataLoaderIter.__next__ is next_batch
        and torch.amp.GradScaler.step is scaled_step,
        "loader": all(BATCH_SECONDS <= step.loader_seconds < step.seconds for step in steps),
        "num_workers": watch.settings().num_workers,
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
