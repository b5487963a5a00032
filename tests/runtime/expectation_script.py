"""A training script that runs by stock DDP and by a bundle alike."""

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rank_training import SEED
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from autosync.runtime.parallelize import drain, no_sync, parallelize, release, session_of
from autosync.specs.task import Task

NUM_STEPS = 4
UPDATE_SECONDS = 0.003

Values = dict[str, Tensor]


def task_of(name: str) -> Task:
    sys.path.insert(0, str(Path(__file__).parent))
    import expectation_tasks

    task: Task = getattr(expectation_tasks, name)()
    return task


def delay_updates(model: torch.nn.Module) -> None:
    """Have the engine's updates take so long that whoever does not wait for them is seen to."""
    session = session_of(model)
    work, operations = session._execution.local, session._plan.operations

    def late(operation: int, iteration: int) -> None:
        if operations[operation].kind == "update":
            time.sleep(UPDATE_SECONDS)
        work(operation, iteration)

    session._execution.local = late


class Script:
    """A model in training, parallel by a bundle or by stock DDP."""

    def __init__(self, task: str, bundle: str | None, *, group: Any = None, seed: int = 0, **options: Any) -> None:
        self.task = task_of(task)
        self.bundle = bundle
        self.options = options
        self.group = group
        self.rank = dist.get_rank(group)
        torch.manual_seed(SEED + self.rank + seed)
        self.model = self.task.model()
        self.optimizer = self.task.optimizer(self.model.parameters())
        self.others: list[torch.optim.Optimizer] = []
        self.batches = torch.Generator().manual_seed(100 + self.rank + seed)
        self.called: Any = self.model

    @property
    def is_stock(self) -> bool:
        return self.bundle is None

    def start(self, **options: Any) -> "Script":
        """Begin to be parallel. Options are DDP's and ours."""
        if self.bundle is None:
            self.called = DistributedDataParallel(
                self.model, find_unused_parameters=hasattr(self.model, "idle"), process_group=self.group, **options
            )
            return self
        options = {**self.options, **options}
        is_late = options.pop("is_late", False)
        given: Any = [self.optimizer, *self.others] if self.others else self.optimizer
        parallelize(self.model, given, self.bundle, self.group, **options)
        self.called = self.model
        if is_late:
            delay_updates(self.model)
        return self

    def stop(self) -> None:
        if not self.is_stock:
            release(self.model)
        self.called = self.model

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        context: contextlib.AbstractContextManager[None] = (
            self.called.no_sync() if self.is_stock else no_sync(self.model)
        )
        return context

    def drain(self) -> None:
        if not self.is_stock:
            drain(self.model)

    def batch(self) -> Any:
        return self.task.batch(self.batches)

    def loss(self) -> Tensor:
        return self.task.loss(self.called, self.batch())

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    def steps(self, count: int = NUM_STEPS) -> None:
        for _ in range(count):
            self.step()

    def values(self, prefix: str = "") -> Values:
        self.drain()
        return {prefix + name: value.detach().clone() for name, value in self.model.state_dict().items()}
