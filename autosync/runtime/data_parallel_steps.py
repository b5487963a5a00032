"""Whole steps of a task under a data-parallel bundle, with what `parallelize` does."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist

from autosync.errors import OperationError
from autosync.runtime.batching import dealing_profile
from autosync.runtime.checkpoints.calls import consolidate
from autosync.runtime.parallelize import describe, drain, no_sync, parallelize, release, session_of, weigh
from autosync.runtime.same_batch import batch_mark, sums_of_step
from autosync.specs.examples import count_divisible, examples_of
from autosync.specs.task import Task
from autosync.specs.task_run import batch_weight, compute_loss, needs_closure, run_backward, step_optimizer
from autosync.strategy.bundle import Bundle


class DataParallelSteps:
    """Trains a model step by step; each rank computes its share of the global batch."""

    def __init__(
        self,
        task: Task,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        bundle: Bundle,
        group: dist.ProcessGroup,
        *,
        timeout_seconds: float,
        init_sync: bool,
    ) -> None:
        self._task = task
        self._model = model
        self._optimizer = optimizer
        self._num_workers = bundle.cluster.num_workers
        shares = bundle.strategy.shares or (bundle.model.batch_size,) * self._num_workers
        rank = dist.get_rank(group)
        ends = [0, *accumulate(shares)]
        self.global_batch = ends[-1]
        self._share = shares[rank]
        self._rank = rank
        self._dealing = dealing_profile(bundle)
        self._range = ends[rank], ends[rank + 1]
        self._weighs = bundle.model.weighs
        parallelize(
            model,
            optimizer,
            bundle,
            group,
            timeout_seconds=timeout_seconds,
            init_sync=init_sync,
            hand_off=not self._weighs,
            batch_size=None if self._weighs else self._share,
        )

    def step(self, batch: Any) -> float:
        """Train on a global batch (with accumulation, on a sequence of them); return its loss."""
        batches = [self._own(one) for one in self._global_batches(batch)]
        parts: list[tuple[float, float]] = []
        if needs_closure(self._optimizer):
            step_optimizer(self._task, self._optimizer, lambda: self._passes(batches, parts))
        else:
            self._passes(batches, parts)
            step_optimizer(self._task, self._optimizer)
        # A mean over nothing is NaN, and counts as nothing.
        weighed = [(loss * weight if weight else 0.0, weight) for loss, weight in parts[-len(batches) :]]
        flat = [number for pair in weighed for number in pair]
        sums = sums_of_step(session_of(self._model).training.links, self._num_workers, flat, batch_mark(batch))
        losses = [total / weight for total, weight in zip(sums[::2], sums[1::2], strict=True)]
        return sum(losses) / len(losses)

    def _global_batches(self, batch: Any) -> Sequence[Any]:
        count = self._task.accumulation_steps
        if count == 1:
            return [batch]
        if not isinstance(batch, list | tuple) or len(batch) != count:
            raise OperationError(f"a step of this task accumulates: it takes a sequence of {count} global batches")
        return batch

    def _own(self, batch: Any) -> Any:
        graphs = self._task.graphs
        found = count_divisible(batch) if graphs is None else len(batch)
        if found != self.global_batch:
            raise OperationError(
                f"a batch of {found} examples; a step trains on the global batch of {self.global_batch} (the task's "
                "batch_size times the number of workers), and each rank has all of it"
            )
        if graphs is None:
            return examples_of(batch, *self._range)
        if self._dealing is None:
            return batch[slice(*self._range)]
        return graphs.deal(batch, self._dealing, rank=self._rank, num_ranks=self._num_workers)

    def _passes(self, batches: Sequence[Any], parts: list[tuple[float, float]]) -> torch.Tensor:
        self._optimizer.zero_grad()
        for one in batches[:-1]:
            with no_sync(self._model):
                self._pass_through(one, parts)
        if self._weighs:
            weigh(self._model, batch_weight(self._task, batches[-1]))
        loss = self._pass_through(batches[-1], parts)
        if self._task.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._task.clip_norm)
        return loss

    def _pass_through(self, batch: Any, parts: list[tuple[float, float]]) -> torch.Tensor:
        loss = compute_loss(self._task, self._model, batch)
        parts.append((float(loss.detach()), batch_weight(self._task, batch) if self._weighs else float(self._share)))
        run_backward(self._task, loss)
        return loss.detach()

    def gather(self) -> None:
        """Wait until all parameters have the values of the last step; every rank has all of them."""
        drain(self._model)

    def gather_optimizer(self) -> None:
        """Bring the optimizer's state to every rank, wherever it is."""
        consolidate(self._model)

    def describe(self) -> str:
        """Describe in words what trains the model."""
        return describe(self._model)

    def finish(self) -> None:
        """Do nothing: a step leaves nothing to be made."""

    def close(self) -> None:
        """End the training; the model stays as it was trained."""
        release(self._model)
