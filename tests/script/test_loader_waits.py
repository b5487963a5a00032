"""While a script is tuned, its waits for batches are measured, and the first batch of each pass is noted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from autosync.script.switching_door import SwitchingDoor

SECONDS, NUM_BATCHES, NUM_EPOCHS = 0.02, 3, 3


class SlowExamples(Dataset[torch.Tensor]):
    """Every example takes a while."""

    def __len__(self) -> int:
        return NUM_BATCHES

    def __getitem__(self, number: int) -> torch.Tensor:
        time.sleep(SECONDS)
        return torch.ones(3)


class _Nothing:
    def step_begins(self, door: SwitchingDoor) -> None:
        """Leave stock DDP in place."""


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_waits_are_measured_and_first_batches_noted(num_workers: int) -> None:
    door = SwitchingDoor(_Nothing())
    with door.open():
        model: Any = DistributedDataParallel(nn.Linear(3, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = DataLoader(SlowExamples(), num_workers=num_workers)
        for _ in range(NUM_EPOCHS):
            for batch in loader:
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()
    steps = door.meter.take()
    # The last step has not ended, because none follows it.
    assert len(steps) == NUM_EPOCHS * NUM_BATCHES - 1
    for number, step in enumerate(steps):
        ends_an_epoch = (number + 1) % NUM_BATCHES == 0
        assert ("first_batch" in step.disturbances) == ends_an_epoch
        if num_workers == 0:
            assert step.wait_seconds >= SECONDS
        assert step.gap_seconds <= step.seconds - step.wait_seconds + 1e-9
