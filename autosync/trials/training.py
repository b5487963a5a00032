"""Trains one contestant's model on this rank step by step, and releases it afterwards."""

from __future__ import annotations

import contextlib
import functools
import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosync.errors import AutosyncError
from autosync.inputs.process_input import take_sums
from autosync.inputs.task_input import TaskBatches
from autosync.runtime.batching import dealing_profile
from autosync.runtime.engine.trace import trace_path
from autosync.runtime.parallelize import drain, no_sync, parallelize, release, weigh, where
from autosync.specs.examples import ShareOfBatches
from autosync.specs.profile.clock import clock_of
from autosync.specs.task import Task
from autosync.specs.task_run import (
    batch_weight,
    build_model,
    build_optimizer,
    compute_loss,
    draw_batch,
    move,
    needs_closure,
    run_backward,
    step_optimizer,
)
from autosync.strategy.bundle import Bundle
from autosync.strategy.emit.settings import DdpSettings
from autosync.trials import meters
from autosync.trials.periods import turn_steps
from autosync.trials.rank_requests import RefusedError
from autosync.trials.stock_ddp import stock_ddp
from autosync.trials.stock_timeline import StockTimeline

CPU = torch.device("cpu")


class ContestantTraining:
    """A model with its optimizer, synchronised by a bundle's strategy, or by torch's DDP without a bundle.

    The model is on `device`, and stock DDP uses `group`; without it, torch's default group.
    With `trace`, it writes its timeline to that path, with the rank's number; `node` is named in the timeline of DDP.

    Every contestant starts from the same seed on every rank, so the first parameters need not be sent: for a large
    model over slow links, that would take longer than the trial.

    If the strategy has shares, each rank draws its share of the global batch; without `deals_shares`, the task's own
    batches are already shares. If it deals the examples of graphs by cost, so do the ranks. If the task has a dataset,
    `autosync.loader` reads each batch under the strategy's input settings, or else under its defaults, and a step
    begins with the wait for it.
    """

    def __init__(
        self,
        task: Task,
        *,
        bundle: Bundle | None,
        ddp: DdpSettings,
        trace: Path | None,
        seed: int,
        rank: int,
        timeout_seconds: float,
        node: str = "",
        device: torch.device = CPU,
        group: dist.ProcessGroup | None = None,
        deals_shares: bool = True,
    ) -> None:
        shares = bundle.strategy.shares if bundle is not None else ()
        torch.manual_seed(seed)
        random.seed(seed)
        self._task = task
        self._device = device
        self._clock = clock_of(device)
        self._marks: list[tuple[Any, Any]] = []
        self._bare = build_model(task).to(device)
        self._optimizer = build_optimizer(task, self._bare.parameters())
        self._is_stock_ddp = bundle is None
        self._model: Any = self._bare
        self._timeline: StockTimeline | None = None
        self.trace_file = None if trace is None else trace_path(trace, rank)
        if bundle is None and trace is not None:
            self._timeline = StockTimeline(trace, rank=rank, node=node)
            self._model = stock_ddp(self._bare, ddp, group=group, noting=self._timeline.noting)
            self._timeline.watch(self._model, self._optimizer)
        elif bundle is None:
            self._model = stock_ddp(self._bare, ddp, group=group)
        else:
            try:
                parallelize(
                    self._bare,
                    self._optimizer,
                    bundle,
                    timeout_seconds=timeout_seconds,
                    init_sync=False,
                    hand_off=trace is None,
                    batch_size=shares[rank] if shares else None,
                    trace=trace,
                    find_unused_parameters=ddp.find_unused_parameters or None,
                )
            except AutosyncError as error:
                raise RefusedError(str(error)) from error
        self._weighs = bundle is not None and task.weight is not None
        self._input = _input_of(task, bundle, seed=seed, rank=rank)
        self._draw = _drawing(task, bundle, self._input, seed=seed, rank=rank, deals_shares=deals_shares)
        self._losses: list[torch.Tensor] = []
        self._wait_seconds = self._copy_seconds = 0.0
        self._doing: str | None = None

    @property
    def num_turn_steps(self) -> int:
        """The number of steps after which all workers of its loader have given equally many batches; 0 without one."""
        return 0 if self._input is None else turn_steps(self._input.num_turns, self._task.accumulation_steps)

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """The model's present parameters by name."""
        return {name: parameter.detach() for name, parameter in self._bare.named_parameters()}

    def take_losses(self) -> list[float]:
        """Return the loss of each step since the last call: the mean over the step's microsteps."""
        losses, self._losses = self._losses, []
        count = self._task.accumulation_steps
        values = [float(loss) for loss in losses]
        return [sum(values[first : first + count]) / count for first in range(0, len(values), count)]

    def take_input(self) -> Mapping[str, Any] | None:
        """Return the sums about the input of the steps since the last call."""
        sums = take_sums(wait_seconds=self._wait_seconds, copy_seconds=self._copy_seconds)
        self._wait_seconds = self._copy_seconds = 0.0
        return sums

    def where(self) -> str | None:
        """Return the part of a step that is being done, in words; None between steps. Another thread may call this."""
        if self._doing is None or self._is_stock_ddp:
            return self._doing
        return f"{self._doing} ({where(self._bare)})"

    def take_seconds(self) -> list[float]:
        """Return the seconds of each step since the last call. On a GPU, wait for these steps."""
        marks, self._marks = self._marks, []
        return [self._clock.seconds(ends)[0] for ends in marks]

    def step(self) -> None:
        """Take one optimizer step."""
        task = self._task
        self._doing = "drawing its batches"
        start = self._clock.mark() if self._input is not None else None
        began = time.perf_counter()
        drawn = [self._draw() for _ in range(task.accumulation_steps)]
        copied_from = time.perf_counter()
        batches = [move(batch, self._device) for batch in drawn]
        self._wait_seconds += copied_from - began
        self._copy_seconds += time.perf_counter() - copied_from
        start = self._clock.mark() if start is None else start
        if needs_closure(self._optimizer):
            step_optimizer(task, self._optimizer, lambda: self._passes(batches))
        else:
            self._passes(batches)
            self._doing = "in the optimizer's step"
            step_optimizer(task, self._optimizer)
        self._doing = None
        self._marks.append((start, self._clock.mark()))

    def _passes(self, batches: Sequence[Any]) -> torch.Tensor:
        """Run the passes of a step, so that gradients are ready for the optimizer; return the loss of the last pass."""
        self._optimizer.zero_grad()
        for batch in batches[:-1]:
            with self._without_sync():
                self._pass_through(batch)
        if self._weighs:
            weigh(self._bare, batch_weight(self._task, batches[-1]))
        loss = self._pass_through(batches[-1])
        if self._task.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._bare.parameters(), self._task.clip_norm)
        return loss

    def go_on(self) -> None:
        """Let the input's workers go on, before some steps."""
        if self._input is not None:
            self._input.go_on()

    def pause(self) -> None:
        """Let the input's workers pause, after some steps."""
        if self._input is not None:
            self._input.pause()

    def settle(self) -> None:
        """Wait for the transfers and updates that the last step has left for the next step."""
        if not self._is_stock_ddp:
            drain(self._bare)

    def _pass_through(self, batch: Any) -> torch.Tensor:
        self._doing = "in the forward pass"
        loss = compute_loss(self._task, self._model, batch)
        self._losses.append(loss.detach())
        self._doing = "in the backward pass"
        run_backward(self._task, loss)
        return loss.detach()

    def _without_sync(self) -> contextlib.AbstractContextManager[None]:
        if self._is_stock_ddp:
            context: contextlib.AbstractContextManager[None] = self._model.no_sync()
            return context
        return no_sync(self._bare)

    def close(self) -> None:
        """Release hooks, threads, process groups and memory; all ranks must call this together."""
        if self._timeline is not None:
            self._timeline.close()
        if not self._is_stock_ddp:
            release(self._bare)
        if self._input is not None:
            self._input.close()
        self._draw = _no_more
        del self._model, self._bare, self._optimizer
        # Models have reference cycles (hooks that know their module), and their memory must be freed now.
        gc.collect()
        # NCCL allocates communicators outside torch's cache. Where no GPU is used, this does nothing.
        torch.cuda.empty_cache()
        meters.give_back_memory()


def _no_more() -> Any:
    raise AssertionError("a contestant that was released draws no batch")


def _input_of(task: Task, bundle: Bundle | None, *, seed: int, rank: int) -> TaskBatches | None:
    """Return the batches of a task with a dataset, under the settings and the shares of a bundle if it has some."""
    if not task.reads_dataset:
        return None
    settings, shares = (None, ()) if bundle is None else (bundle.strategy.input, bundle.strategy.shares)
    return TaskBatches(task, settings, rank=rank, num_ranks=dist.get_world_size(), seed=seed, shares=shares)


def _drawing(
    task: Task, bundle: Bundle | None, batches: TaskBatches | None, *, seed: int, rank: int, deals_shares: bool
) -> Callable[[], Any]:
    """Return what draws this rank's batches."""
    if batches is not None:
        return batches.draw
    shares = () if bundle is None else bundle.strategy.shares
    if shares and deals_shares:
        return ShareOfBatches(task, shares, rank, functools.partial(batch_generator, seed)).draw
    dealt = _dealt(task, bundle, seed=seed, rank=rank)
    return dealt or functools.partial(draw_batch, task, batch_generator(seed, rank))


def _dealt(task: Task, bundle: Bundle | None, *, seed: int, rank: int) -> Callable[[], Any] | None:
    """Return what draws this rank's batches if a bundle deals the examples of graphs by cost; None if it does not."""
    profile = None if bundle is None else dealing_profile(bundle)
    if bundle is None or profile is None or task.graphs is None:
        return None
    graphs, num_ranks = task.graphs, bundle.cluster.num_workers
    generators = [batch_generator(seed, other) for other in range(num_ranks)]

    def draw() -> Any:
        drawn = [one for generator in generators for one in draw_batch(task, generator)]
        return graphs.deal(drawn, profile, rank=rank, num_ranks=num_ranks)

    return draw


def batch_generator(seed: int, rank: int) -> torch.Generator:
    """Return the generator with which a rank draws its batches."""
    return torch.Generator().manual_seed(seed * 1_000_003 + rank)
