"""Tasks whose examples come over the links that gradients need. Each has another proportion of examples to gradients.

Ranks read from the store in the testbed. Outside of it, where the profile is taken, a server on this machine has the
same files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional

from autosync import Task
from autosync.inputs.tar_shards import TarShards

BATCH_SIZE = 16
NUM_FEATURES = 256
NUM_SHARDS = 4


def mostly_reads() -> Task:
    """2.1 MB of examples and 0.8 MB of gradients a step."""
    return _task("mostly_reads", width=600)


def alike() -> Task:
    """1 MB of examples and 1.3 MB of gradients a step."""
    return _task("alike", width=960)


def mostly_gradients() -> Task:
    """0.3 MB of examples and 2.7 MB of gradients a step."""
    return _task("mostly_gradients", width=2000)


EXAMPLE_BYTES = {"mostly_reads": 131_072, "alike": 65_536, "mostly_gradients": 16_384}
TASKS = {"mostly_reads": mostly_reads, "alike": alike, "mostly_gradients": mostly_gradients}


def decode(sample: Mapping[str, bytes]) -> torch.Tensor:
    values = torch.frombuffer(bytearray(sample["bin"][:NUM_FEATURES]), dtype=torch.uint8)
    return values.float() / 255


def _task(name: str, *, width: int) -> Task:
    def shards() -> TarShards:
        # Only the processes of ranks have a rank.
        store = os.environ["BENCHMARK_STORE" if "RANK" in os.environ else "BENCHMARK_STORE_HERE"]
        return TarShards([f"{store}/{number:04}.tar" for number in range(NUM_SHARDS)], decode=decode)

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(model(batch), batch[:, :64])

    return Task(
        name=name,
        model=lambda: nn.Sequential(nn.Linear(NUM_FEATURES, width), nn.ReLU(), nn.Linear(width, 64)),
        dataset=shards,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        batch_size=BATCH_SIZE,
    )
