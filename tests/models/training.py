"""How a model of the suite is trained on one rank, under stock DDP or under a bundle, and what is kept of it."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from zoo import Batch, Entry

from autosync import Task, parallelize
from autosync.runtime.parallelize import drain, no_sync, release
from autosync.strategy.bundle import Bundle

NUM_STEPS = 5
MAX_SECONDS_FOR_A_RUN = 240.0
"""It takes a few where the processors are free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What a step is made of."""

    name: str
    accumulation_steps: int
    clip_norm: float | None
    autocast: bool
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

    def loss(self, entry: Entry, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The loss of a microstep."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            return entry.loss(model, batch)

    def task(self, entry: Entry) -> Task:
        """The same as a task."""
        return Task(
            name=entry.name,
            model=entry.model,
            batch=entry.batch,
            loss=lambda model, batch: self.loss(entry, model, batch),
            optimizer=self.optimizer,
            accumulation_steps=self.accumulation_steps,
            clip_norm=self.clip_norm,
        )


def _adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def _sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


USUAL = Training(name="usual", accumulation_steps=2, clip_norm=0.1, autocast=True, optimizer=_adamw)
"""The norms of the models' gradients are 0.2 to 40: all of them are clipped."""

WHOLE_STEPS = Training(name="whole steps", accumulation_steps=1, clip_norm=0.1, autocast=False, optimizer=_adamw)
"""For factors, which are refused where a step is made of several microsteps, or in another dtype by autocast."""

PLAIN_SGD = Training(name="plain SGD", accumulation_steps=2, clip_norm=None, autocast=True, optimizer=_sgd)
"""For rows: AdamW takes no sparse gradients, and clipping needs the norm of all of them."""


class Way(Protocol):
    """A way to synchronise: stock DDP or a bundle. It trains a model and an optimizer that it is given, once."""

    compiles: bool
    turn: int

    def batch(self, batch: Batch) -> Batch:
        """The batch that the model sees for one that was drawn."""

    def start(self, entry: Entry, model: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
        """What is called in forward passes."""

    def no_sync(self, called: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """In it backward passes only accumulate."""

    def gradients_are_there(self, model: nn.Module) -> None:
        """The step's backward passes are over."""

    def clip(self, model: nn.Module, clip_norm: float) -> float:
        """Clip all gradients; their norm before."""

    def updates_are_due(self, model: nn.Module) -> None:
        """The model's parameters are about to be read."""

    def end(self, model: nn.Module) -> None:
        """All steps are made."""


class Stock:
    """Stock DDP with a bucket size.

    With the seed `nudge` every gradient is moved by a unit in the last place, up, down or not at all, with equal
    chances and alike on all ranks: what one more rounding of the sum over ranks would do. With the seed `shuffle` the
    examples of every batch come in another order: what another order of the sum over examples does. With `exact_norm`
    it clips by a norm that was worked out in float64. With `turn` each rank trains on the batches of the rank that many
    places further on: what another order of the sum over ranks does. With `divides_sum` gradients are divided by the
    number of ranks after their sum, as by the engine, and not before it: where that number is no power of two, each
    gradient is rounded once less. `compiles` says whether a model that shall be compiled is.
    """

    def __init__(
        self,
        bucket_cap_mb: int,
        *,
        nudge: int | None = None,
        shuffle: int | None = None,
        exact_norm: bool = False,
        turn: int = 0,
        divides_sum: bool = False,
        compiles: bool = True,
    ) -> None:
        self.bucket_cap_mb = bucket_cap_mb
        self.exact_norm = exact_norm
        self.turn = turn
        self.divides_sum = divides_sum
        self.compiles = compiles
        self.nudges = None if nudge is None else torch.Generator().manual_seed(nudge)
        self.orders = None if shuffle is None else torch.Generator().manual_seed(shuffle)

    def batch(self, batch: Batch) -> Batch:
        if self.orders is None:
            return batch
        order = torch.randperm(len(next(iter(batch.values()))), generator=self.orders)
        return {name: value[order] for name, value in batch.items()}

    def start(self, entry: Entry, model: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
        # Torch's own all-reduce of sparse gradients on gloo corrupts memory now and then; dense ones are as good here.
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                module.sparse = False
        made = DistributedDataParallel(
            model, bucket_cap_mb=self.bucket_cap_mb, find_unused_parameters=entry.leaves_some
        )
        if self.divides_sum:
            made.register_comm_hook(None, lambda _, bucket: _mean_of_sum(bucket))
        return made

    def no_sync(self, called: nn.Module) -> contextlib.AbstractContextManager[Any]:
        assert isinstance(called, DistributedDataParallel)
        return called.no_sync()

    def gradients_are_there(self, model: nn.Module) -> None:
        if self.nudges is None:
            return
        for parameter in model.parameters():
            if parameter.grad is not None:
                gradient = parameter.grad
                drawn = torch.randint(-1, 2, gradient.shape, generator=self.nudges)
                towards = torch.where(drawn == 0, gradient, drawn * torch.inf)
                gradient.copy_(torch.nextafter(gradient, towards))

    def clip(self, model: nn.Module, clip_norm: float) -> float:
        if not self.exact_norm:
            return _clip(model, clip_norm)
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))
        for gradient in gradients:
            gradient.mul_(min(1.0, clip_norm / (norm + 1e-6)))
        return norm

    def updates_are_due(self, model: nn.Module) -> None:
        pass

    def end(self, model: nn.Module) -> None:
        pass


def _mean_of_sum(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A bucket's all-reduce, divided by the number of ranks when it is done."""

    def mean(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        return future.value()[0].div_(dist.get_world_size())

    summed = dist.all_reduce(bucket.buffer(), async_op=True)
    assert summed is not None, "asked for"
    return summed.get_future().then(mean)


class Bundled:
    """A bundle of ours."""

    compiles = True
    turn = 0

    def __init__(self, bundle: Bundle, *, hand_off: bool) -> None:
        self.bundle = bundle
        self.hand_off = hand_off

    def batch(self, batch: Batch) -> Batch:
        return batch

    def start(self, entry: Entry, model: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
        parallelize(model, optimizer, self.bundle, timeout_seconds=MAX_SECONDS_FOR_A_RUN / 2, hand_off=self.hand_off)
        return model

    def no_sync(self, called: nn.Module) -> contextlib.AbstractContextManager[Any]:
        return no_sync(called)

    def gradients_are_there(self, model: nn.Module) -> None:
        pass

    def clip(self, model: nn.Module, clip_norm: float) -> float:
        return _clip(model, clip_norm)

    def updates_are_due(self, model: nn.Module) -> None:
        drain(model)

    def end(self, model: nn.Module) -> None:
        release(model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a rank has: the values of all parameters after some numbers of steps, the norm of each step's gradients."""

    values: dict[int, dict[str, torch.Tensor]]
    norms: tuple[float, ...]

    def digest(self) -> str:
        """The same on two ranks if all their values are, bit for bit."""
        found = hashlib.sha256()
        for values in self.values.values():
            for value in values.values():
                found.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return found.hexdigest()


def compiled(model: nn.Module) -> nn.Module:
    """The same model, traced and differentiated ahead. Compiling the operations too would take minutes."""
    found: nn.Module = torch.compile(model, backend="aot_eager")
    return found


def train(entry: Entry, training: Training, way: Way) -> Trained:
    """Train on this rank; all ranks do."""
    torch.manual_seed(7)
    model = entry.model()
    model.train()
    optimizer = training.optimizer(parameter for parameter in model.parameters() if parameter.requires_grad)
    generator = torch.Generator().manual_seed(100 + (dist.get_rank() + way.turn) % dist.get_world_size())
    called = way.start(entry, compiled(model) if entry.is_compiled and way.compiles else model, optimizer)
    values = {0: _copies(model)}
    norms = []
    for step in range(1, NUM_STEPS + 1):
        optimizer.zero_grad()
        for microstep in range(training.accumulation_steps):
            is_last = microstep == training.accumulation_steps - 1
            with contextlib.nullcontext() if is_last else way.no_sync(called):
                loss = training.loss(entry, called, way.batch(entry.batch(generator)))
                (loss / training.accumulation_steps).backward()
        way.gradients_are_there(model)
        if training.clip_norm is not None:
            norms.append(way.clip(model, training.clip_norm))
        optimizer.step()
        if entry.between is not None:
            _check_what_is_seen(entry.between, way, model)
        if step in (1, NUM_STEPS):
            way.updates_are_due(model)
            values[step] = _copies(model)
    way.end(model)
    return Trained(values=values, norms=tuple(norms))


def _check_what_is_seen(between: Callable[[nn.Module], torch.Tensor], way: Way, model: nn.Module) -> None:
    """What is done right after a step sees the same as when all updates are made."""
    seen = between(model)
    way.updates_are_due(model)
    if not torch.equal(seen, between(model)):
        raise RuntimeError("what is done right after a step sees parameters before their update")


def _clip(model: nn.Module, clip_norm: float) -> float:
    return float(nn.utils.clip_grad_norm_(model.parameters(), clip_norm))


def _copies(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
