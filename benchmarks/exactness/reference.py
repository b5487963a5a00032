"""The expected result of a case of `exactness.py`: the same training in one process, and in stock DDP.

The reference trains in float64 on the same microbatches, accumulated. A rank's gradients are compared with those of a
copy of its model, elementwise with a forward error bound. Parameters and optimizer state are compared with the
reference by the norms of tensors: in float64 they must be nearly equal, in float32 as near as stock DDP is, within a
factor.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from autosync.specs.examples import ShareOfBatches
from autosync.specs.task_run import move
from autosync.strategy.shares import weights_of
from benchmarks.exactness.tasks import task_of

SEED = 5
FLOAT64_TOLERANCE = 1e-10
FLOAT_FACTOR = 10.0
"""The factor by which a correct run may be farther from the reference than stock DDP: errors are random, and DDP's is
one sample."""
SMALLEST_NORM = 1e-3

Values = dict[str, Tensor]


class Training:
    """A task in training on one rank. The caller adds the parallel parts.

    With `shares`, the rank computes its share of the batches that all ranks have without them.
    """

    def __init__(self, name: str, dtype: str, rank: int, device: str = "cpu", shares: Sequence[int] = ()) -> None:
        self.device = torch.device(device)
        self.task = task_of(name, dtype)
        # Ranks start with different parameters: the engine must make them equal, as DDP does.
        torch.manual_seed(SEED + rank)
        self.model = self.task.model().to(self.device)
        self.optimizer = self.task.optimizer(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2, gamma=0.5)
        self.batches = _generator(rank)
        self.draw: Callable[[], Any] = lambda: self.task.batch(self.batches)
        self.weight = 1.0
        if shares:
            self.draw = ShareOfBatches(self.task, shares, rank, _generator).draw
            self.weight = weights_of(shares)[rank]
        self.called: nn.Module = self.model
        self.without_sync: Callable[[], AbstractContextManager[None]] = nullcontext
        self.step_batches: list[Any] = []

    def backward(self) -> None:
        """Run all microsteps of a step."""
        count = self.task.accumulation_steps
        self.step_batches = [move(self.draw(), self.device) for _ in range(count)]
        for number, batch in enumerate(self.step_batches, start=1):
            with nullcontext() if number == count else self.without_sync():
                self.task.loss(self.called, batch).backward()

    def update(self) -> None:
        if self.task.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.task.clip_norm)
        self.optimizer.step()
        self.scheduler.step()

    @torch.no_grad()
    def evaluate(self) -> float:
        """Return the loss on a batch that is the same for all ranks."""
        self.model.eval()
        loss = float(self.task.loss(self.model, move(evaluation_batch(self.task), self.device)))
        self.model.train()
        return loss


def _generator(rank: int) -> torch.Generator:
    """Return the generator of a rank's batches with even shares."""
    return torch.Generator().manual_seed(100 + rank)


def evaluation_batch(task: Any) -> Any:
    return task.batch(torch.Generator().manual_seed(99))


def values_of(model: nn.Module) -> Values:
    """Return the state dict in float64, copied."""
    return {name: value.detach().to("cpu", torch.float64, copy=True) for name, value in model.state_dict().items()}


def state_of(optimizer: torch.optim.Optimizer) -> Values:
    """Return the optimizer's state as in its state dict, in float64, copied."""
    return {
        f"{key} of parameter {index}": torch.as_tensor(value).detach().to("cpu", torch.float64, copy=True)
        for index, entries in optimizer.state_dict()["state"].items()
        for key, value in entries.items()
        if value is not None
    }


@dataclass(slots=True)
class Trained:
    """The result of a training: parameters and evaluations after each step, and the optimizer's state at the end."""

    values: list[Values] = field(default_factory=list)
    evaluations: list[float] = field(default_factory=list)
    state: Values = field(default_factory=dict)


class Expectation:
    """The expected result of a task on this number of ranks, which compute it together."""

    def __init__(self, name: str, dtype: str, *, num_steps: int, device: str = "cpu") -> None:
        self.exact = by_one_process(name, dtype, dist.get_world_size(), num_steps)
        self.stock = by_ddp(name, dtype, num_steps, device)
        self._is_float64 = dtype == "float64"
        self._is_on_cpu = device == "cpu"
        self._values = [self._tolerances(*pair) for pair in zip(self.stock.values, self.exact.values, strict=True)]
        self._state = self._tolerances(self.stock.state, self.exact.state)

    def _tolerances(self, stock: Values, exact: Values) -> dict[str, float]:
        errors = {name: error_of(stock[name], exact[name]) for name in exact}
        if self._is_float64:
            # The reference is computed on the CPU. On a GPU, DDP's own rounding can exceed what is enough on a CPU.
            usual = 0.0 if self._is_on_cpu else FLOAT_FACTOR
            return {name: max(FLOAT64_TOLERANCE, usual * error) for name, error in errors.items()}
        # If DDP matches a tensor exactly by chance, its usual error counts.
        usual = max(statistics.median(errors.values()), 4 * torch.finfo(torch.float32).eps) if errors else 0.0
        return {name: FLOAT_FACTOR * max(error, usual) for name, error in errors.items()}

    def values_differ(self, step: int, values: Values) -> tuple[list[str], float]:
        """Return the problems after a step, and the largest error as a share of its tolerance."""
        return _compare(values, self.exact.values[step], self._values[step], f"after step {step}")

    def state_differs(self, state: Values) -> tuple[list[str], float]:
        """Return the problems of the optimizer's state at the end, and the largest error over its tolerance."""
        return _compare(state, self.exact.state, self._state, "at the end")

    def evaluation_differs(self, step: int, loss: float) -> list[str]:
        expected = self.exact.evaluations[step]
        tolerance = FLOAT64_TOLERANCE
        if not self._is_float64:
            usual = abs(self.stock.evaluations[step] - expected) / abs(expected)
            tolerance = FLOAT_FACTOR * max(usual, 64 * torch.finfo(torch.float32).eps)
        error = abs(loss - expected) / abs(expected)
        return [] if error <= tolerance else [f"evaluation after step {step} is off by {error:.1e}"]


def _compare(found: Values, expected: Values, tolerances: Mapping[str, float], when: str) -> tuple[list[str], float]:
    if found.keys() != expected.keys():
        return [f"{when}: {sorted(found.keys() ^ expected.keys())} are on one side only"], 0.0
    problems, worst = [], 0.0
    for name, value in found.items():
        error = error_of(value, expected[name])
        worst = max(worst, error / tolerances[name])
        if not error <= tolerances[name]:
            problems.append(f"{when} {name} is off by {error:.1e} (tolerance {tolerances[name]:.1e})")
    return problems, worst


def error_of(value: Tensor, expected: Tensor) -> float:
    """Return the error relative to the tensor's norm."""
    return float((value - expected).norm() / expected.norm().clamp_min(SMALLEST_NORM))


def by_one_process(name: str, dtype: str, num_ranks: int, num_steps: int) -> Trained:
    """Train in one process, in float64, and accumulate the gradients of all ranks' microbatches."""
    made = [Training(name, dtype, rank) for rank in range(num_ranks)]
    task = made[0].task
    model = made[0].model.double()
    optimizer = task.optimizer(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    trained = Trained()
    for _ in range(num_steps):
        optimizer.zero_grad()
        for one in made:
            for _ in range(task.accumulation_steps):
                (task.loss(model, _double(task.batch(one.batches))) / num_ranks).backward()
        if task.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), task.clip_norm)
        optimizer.step()
        scheduler.step()
        trained.values.append(values_of(model))
        with torch.no_grad():
            trained.evaluations.append(float(task.loss(model, _double(evaluation_batch(task)))))
    trained.state = state_of(optimizer)
    return trained


def _double(batch: Any) -> Any:
    if isinstance(batch, tuple):
        return tuple(_double(one) for one in batch)
    return batch.double() if batch.is_floating_point() else batch


def by_ddp(name: str, dtype: str, num_steps: int, device: str) -> Trained:
    """Train a task with stock DDP. All ranks must call this."""
    made = Training(name, dtype, dist.get_rank(), device)
    wrapped = DistributedDataParallel(made.model, find_unused_parameters=name.startswith("unused"))
    if any(isinstance(module, nn.Embedding) and module.sparse for module in made.model.modules()):
        wrapped.register_comm_hook(None, lambda _, bucket: _averaged(bucket))
    made.called, made.without_sync = wrapped, wrapped.no_sync
    trained = Trained()
    for _ in range(num_steps):
        made.optimizer.zero_grad()
        made.backward()
        made.update()
        trained.values.append(values_of(made.model))
        trained.evaluations.append(made.evaluate())
    trained.state = state_of(made.optimizer)
    return trained


def _averaged(bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket as DDP does, with a workaround for sparse gradients.

    torch 2.13's all-reduce of sparse gradients on gloo corrupts the heap.
    """
    gradient = bucket.buffer()
    if not gradient.is_sparse:
        return allreduce_hook(dist.group.WORLD, bucket)
    values = gradient.to_dense() / dist.get_world_size()
    has_row = torch.zeros(len(values), dtype=torch.uint8, device=values.device)
    has_row[gradient.coalesce().indices()[0]] = 1
    dist.all_reduce(values)
    dist.all_reduce(has_row, dist.ReduceOp.MAX)
    rows = has_row.nonzero().flatten()
    merged: torch.futures.Future[Tensor] = torch.futures.Future()
    merged.set_result(torch.sparse_coo_tensor(rows[None], values[rows], values.shape, is_coalesced=True))
    return merged


class Gradients:
    """Compares the gradients that users see with those of a copy of the model, which this harness exchanges itself.

    The bound of each element is 4·n·u·Σ|g_r| for the n ranks' contributions g_r to the average. For factors it comes
    from the sums behind the gradient, with |A|ᵀ|B| in place of |g_r|, and is n times as wide. A row that occurs several
    times in a batch has the sum of its occurrences' magnitudes in place of |g_r|, because each is weighed by itself.
    """

    def __init__(self, model: nn.Module, names: Sequence[str], factors: frozenset[str]) -> None:
        self._copy = copy.deepcopy(model)
        self._names = names
        self._factors = factors
        self._magnitudes: Values = {}
        linears = {f"{name}.weight": one for name, one in self._copy.named_modules() if isinstance(one, nn.Linear)}
        for name in factors:
            linears[name].register_forward_hook(self._hook(name))

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def forward(_: nn.Module, inputs: Any, output: Tensor) -> None:
            rows = inputs[0].detach().flatten(0, -2).double().abs()

            def backward(gradient: Tensor) -> None:
                product = gradient.flatten(0, -2).double().abs().T @ rows
                self._magnitudes[name] = self._magnitudes.get(name, 0) + product

            output.register_hook(backward)

        return forward

    def differ(self, made: Training) -> Iterator[str]:
        """Yield the problems of a step's gradients, between its backward pass and its update."""
        if not self._names:
            return
        own = self._own(made)
        found = dict(made.model.named_parameters())
        num_ranks = dist.get_world_size()
        used = [name for name in self._names if name in own]
        for name in self._names:
            if name not in own and found[name].grad is not None:
                yield f"{name} has a gradient, and no rank has used it"
        if not used:
            return
        sums = torch.cat([own[name].flatten() for name in used])
        magnitudes = sums.abs()
        # The harness communicates on the CPU, wherever training is.
        everyones = torch.stack((sums, self._with_own(used, magnitudes))).cpu()
        gathered = [torch.empty_like(everyones) for _ in range(num_ranks)]
        dist.all_gather(gathered, everyones)
        expected, bounds = torch.stack(gathered).sum(0) / num_ranks
        unit = torch.finfo(next(made.model.parameters()).dtype).eps / 2
        offset = 0
        for name in used:
            size = own[name].numel()
            yield from self._differs(
                name,
                found[name],
                expected[offset : offset + size],
                4 * num_ranks * unit * bounds[offset : offset + size] * (num_ranks if name in self._factors else 1),
            )
            offset += size

    def _differs(self, name: str, parameter: Tensor, expected: Tensor, bound: Tensor) -> Iterator[str]:
        gradient = parameter.grad
        if gradient is None:
            yield f"the gradient of {name} is None"
            return
        is_sparse = dict(self._copy.named_parameters())[name].grad.is_sparse
        if gradient.is_sparse != is_sparse:
            yield f"the gradient of {name} is {'' if gradient.is_sparse else 'not '}sparse"
        values = gradient.to_dense() if gradient.is_sparse else gradient
        excess = (values.double().flatten().cpu() - expected).abs() - bound
        if not bool((excess <= 0).all()):
            worst = int(excess.argmax())
            limit = float(bound[worst])
            error = float(excess[worst]) + limit
            yield f"the gradient of {name} is off by {error:.1e} at {worst}, where the bound is {limit:.1e}"

    def _own(self, made: Training) -> Values:
        # Not through a state dict: reading one makes the engine wait, which could hide errors.
        with torch.no_grad():
            for mine, theirs in zip(_tensors(self._copy), _tensors(made.model), strict=True):
                mine.copy_(theirs)
        self._copy.zero_grad()
        self._magnitudes.clear()
        for batch in made.step_batches:
            made.task.loss(self._copy, batch).backward()
        found = {}
        for name, parameter in self._copy.named_parameters():
            gradient = parameter.grad
            if gradient is not None:
                dense = gradient.to_dense() if gradient.is_sparse else gradient
                found[name] = dense.double() * made.weight
                if gradient.is_sparse:
                    self._magnitudes[name] = _magnitudes(gradient) * made.weight
        return found

    def _with_own(self, names: Sequence[str], magnitudes: Tensor) -> Tensor:
        offset = 0
        for name in names:
            size = dict(self._copy.named_parameters())[name].numel()
            if name in self._magnitudes:
                magnitudes[offset : offset + size] = self._magnitudes[name].flatten()
            offset += size
        return magnitudes


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _magnitudes(gradient: Tensor) -> Tensor:
    """Return the magnitudes of a sparse gradient, each row's summed over its occurrences."""
    indices, values = gradient._indices(), gradient._values()  # noqa: SLF001 - the others want a coalesced tensor
    return torch.sparse_coo_tensor(indices, values.double().abs(), gradient.shape, check_invariants=False).to_dense()
