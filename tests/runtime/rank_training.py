"""A task in training on a real rank, and how the outcome differs from that of stock DDP."""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autosync.errors import AutosyncError
from autosync.runtime.parallelize import no_sync, parallelize, release
from autosync.specs.task import Task

NUM_STEPS = 3
SEED = 5
NOT_RAISED = "nothing raised"
# Of what is near equal, for sums are rounded otherwise; all else is float64, which must be nearly the same.
TOLERANCES = {torch.bfloat16: 2e-2, torch.float32: 1e-6}


@functools.cache
def task_of(name: str) -> Task:
    sys.path.insert(0, str(Path(__file__).parent))
    import tasks

    task: Task = getattr(tasks, name)()
    return task


def rank() -> int:
    return dist.get_rank()


class Training:
    """A task in training; what makes it parallel is handed in."""

    def __init__(self, name: str) -> None:
        self.task = task_of(name)
        # Ranks begin apart: to make them agree is the engine's work, as it is DDP's.
        torch.manual_seed(SEED + rank())
        self.model = self.task.model()
        self.optimizer = self.task.optimizer(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2, gamma=0.5)
        self.batches = torch.Generator().manual_seed(100 + rank())
        self.called: Any = self.model
        self.without_sync: Callable[[], contextlib.AbstractContextManager[None]] = lambda: no_sync(self.model)

    def backward(self) -> None:
        self.task.loss(self.called, self.task.batch(self.batches)).backward()

    def step(self) -> None:
        self.optimizer.zero_grad()
        for _ in range(self.task.accumulation_steps - 1):
            with self.without_sync():
                self.backward()
        self.backward()
        if self.task.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.task.clip_norm)
        self.optimizer.step()
        self.scheduler.step()

    def steps(self, count: int = NUM_STEPS) -> None:
        for _ in range(count):
            self.step()

    def values(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}


@contextlib.contextmanager
def training(name: str, bundle: str, **options: Any) -> Iterator[Training]:
    made = Training(name)
    parallelize(made.model, made.optimizer, bundle, **options)
    try:
        yield made
    finally:
        release(made.model)


@functools.cache
def by_ddp(name: str, num_steps: int = NUM_STEPS) -> dict[str, torch.Tensor]:
    """What stock DDP makes of a task."""
    made = Training(name)
    made.called = DistributedDataParallel(made.model, find_unused_parameters=name == "odd")
    made.without_sync = made.called.no_sync
    made.steps(num_steps)
    return made.values()


def difference(
    values: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], *, usual_tolerance: float = 1e-11
) -> str:
    """The tensors that are not as expected, by their norms, or that differ between ranks at all."""
    found = []
    for key, value in values.items():
        # Every rank looks at every tensor, for the ranks meet here.
        numbers = value.double().contiguous()
        everyones = [torch.empty_like(numbers) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, numbers)
        tolerance = TOLERANCES.get(value.dtype, usual_tolerance)
        error = float((numbers - expected[key].double()).norm() / expected[key].double().norm().clamp_min(1e-3))
        if not error < tolerance:
            found.append(f"{key} is off by {error:.1e}")
        if not all(torch.equal(other, everyones[0]) for other in everyones):
            found.append(f"{key} differs between ranks")
    return "; ".join(found)


def raised(function: Callable[[], Any]) -> str:
    """The error that a call ends with; the answer to a refusal that does not come is no error."""
    try:
        function()
    except AutosyncError as error:
        return f"{type(error).__name__}: {error}"
    return NOT_RAISED
