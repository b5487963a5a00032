"""Replay: a model spec as a task. Compute takes the recorded time by sleeping; everything on the wire is real.

The replayed model has the spec's parameters by name and shape. Its forward pass goes through the recorded segments, its
backward pass gives out gradients of the real sizes (rows for sparse ones, with their factors for those of linear
layers) in the recorded order, its optimizer takes the recorded time for whatever share of the elements it updates.
Sleeping leaves the cores to the network, which on an
emulated cluster is what one wants to measure. Numbers in gradients and parameters mean nothing.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from autosync.runtime.local.optimizer_facts import known_optimizer
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Variable
from autosync.specs.task import Task

Rows: TypeAlias = Mapping[str, torch.Tensor]
"""For each variable with sparse gradients the rows that a batch touches."""

_SLACK_SECONDS = 0.0005
"""How far the pace may lag behind and catch up: sleeping too long by so much is made good by the next segment."""


class ReplayPace:
    """A clock that compute keeps up with: each segment ends when its time is over, whatever work was done meanwhile."""

    def __init__(self) -> None:
        self._until = time.perf_counter()

    def spend(self, seconds: float) -> None:
        """Let a segment's time pass. Time lost in waiting for others is not made good."""
        now = time.perf_counter()
        if now - self._until > _SLACK_SECONDS:
            self._until = now
        self._until += seconds
        remaining = self._until - time.perf_counter()
        if remaining > 0:
            time.sleep(remaining)


def replay_task(model: ModelSpec) -> Task:
    """The task that stands for a model spec."""
    # Of sparse gradients the recorded update touched their rows alone.
    num_elements = sum(_num_updated(variable) for variable in model.variables)
    update_seconds = sum(segment.seconds for segment in model.timeline.optimizer)
    seconds_per_element = update_seconds / num_elements if num_elements else 0.0
    return Task(
        name=model.name,
        model=lambda: ReplayedModel(model),
        batch=lambda generator: _draw_rows(model, generator),
        loss=lambda module, rows: module(rows),
        optimizer=lambda parameters: ReplayedOptimizer(
            parameters, seconds_per_element=seconds_per_element, stands_for=model.optimizer
        ),
        batch_size=model.batch_size,
        accumulation_steps=model.accumulation_steps,
    )


class _Owner(nn.Module):
    """A module that owns parameters; where one is a linear layer's weight, it tells the factors of its gradient."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._factors: tuple[torch.Tensor, torch.Tensor] | None = None
        self._factors_hooks: OrderedDict[int, Callable[[torch.Tensor, torch.Tensor], None]] = OrderedDict()

    def begin_factors(self, weight: torch.Tensor, num_rows: int) -> None:
        width, depth = weight.shape
        self._factors = weight.detach().new_zeros((num_rows, depth)), weight.detach().new_zeros((num_rows, width))

    def register_factors_hook(self, hook: Callable[[torch.Tensor, torch.Tensor], None]) -> RemovableHandle:
        handle = RemovableHandle(self._factors_hooks)
        self._factors_hooks[handle.id] = hook
        return handle

    def give_factors(self) -> None:
        """The backward pass is here."""
        if self._factors is not None:
            for hook in self._factors_hooks.values():
                hook(*self._factors)


class _ReplayStage(_Owner):
    """A module of the replayed model; its time is spent by the model."""

    def forward(self) -> None:
        return


class _Table(_ReplayStage, nn.Embedding):  # type: ignore[misc]  # it has a stage's forward pass and looks nothing up
    """A stage whose variables have sparse gradients: stock DDP takes these from embeddings that say so alone."""

    def __init__(self, num_rows: int, width: int) -> None:
        super().__init__(num_rows, width, sparse=True, device="meta")
        # Whatever the spec calls the variable, the model registers it.
        del self.weight


class ReplayedModel(_Owner):
    """The spec's parameters, in modules named as the original's, behind passes that take their time."""

    def __init__(self, model: ModelSpec) -> None:
        super().__init__()
        self._timeline = model.timeline
        self._pace = ReplayPace()
        self._variables = {variable.name: variable for variable in model.variables}
        self._gradients: dict[str, torch.Tensor] = {}
        self._owners: dict[str, _Owner] = {}
        tables = {v.name.rpartition(".")[0]: v for v in model.variables if v.sparse}
        for variable in model.variables:
            name, _, leaf = variable.name.rpartition(".")
            owner = self._module(name, tables)
            parameter = nn.Parameter(torch.zeros(variable.shape, dtype=getattr(torch, variable.dtype)))
            owner.register_parameter(leaf, parameter)
            self._owners[variable.name] = owner
            if variable.factor_rows is not None:
                # Zero, so that it is the product of its factors whatever synchronising makes of either.
                self._gradients[variable.name] = torch.zeros_like(parameter, requires_grad=False)
                owner.begin_factors(parameter, variable.factor_rows)
            elif not variable.sparse:
                self._gradients[variable.name] = torch.ones_like(parameter, requires_grad=False)
        self._by_name = dict(self.named_parameters())

    def _module(self, name: str, tables: Mapping[str, Variable]) -> _Owner:
        """The module of that name, made where it is missing. `tables` has the sparse variable of those that own one."""
        if not name:
            return self
        above, _, step = name.rpartition(".")
        parent = self._module(above, tables)
        module = dict(parent.named_children()).get(step)
        if module is None:
            module = _Table(*tables[name].shape) if name in tables else _ReplayStage()
            parent.add_module(step, module)
        assert isinstance(module, _Owner), "all modules here are"
        return module

    def forward(self, rows: Rows) -> torch.Tensor:
        for segment in self._timeline.forward:
            self._pass(segment)
        # The node that is made last runs first in the backward pass.
        loss = torch.zeros((), requires_grad=True)
        for segment in reversed(self._timeline.backward):
            parameters = [self._by_name[name] for name in segment.variables]
            loss = _BackwardSegment.apply(loss, self, segment, rows, *parameters)  # type: ignore[no-untyped-call]
        return loss

    def _pass(self, segment: Segment) -> None:
        """Through the segment's module, so that whoever hooks into it (to wait for its parameters) gets a chance."""
        owners = dict.fromkeys(name.rpartition(".")[0] for name in segment.variables)
        for owner in owners:
            if owner:
                self.get_submodule(owner)()
        self._pace.spend(segment.seconds)

    def gradient(self, name: str, rows: Rows) -> torch.Tensor:
        """A variable's gradient; for a sparse one the rows that the batch touches.

        Dense ones take no time: a view of memory that is here already, which autograd takes as it is. Of a copy, large
        gradients would make steps longer than recorded. What synchronising makes of the numbers they keep; so where a
        microstep's gradient is added to an earlier one's, which lies in the same memory, it is zero.
        """
        variable = self._variables[name]
        if variable.factor_rows is not None:
            self._owners[name].give_factors()
        if not variable.sparse:
            kept = self._gradients[name]
            if self._by_name[name].grad is None:
                return kept.view_as(kept)
            return kept.new_zeros(()).expand_as(kept)
        touched = rows[name]
        values = torch.ones((len(touched), variable.shape[1]), dtype=getattr(torch, variable.dtype))
        return torch.sparse_coo_tensor(
            touched.unsqueeze(0), values, variable.shape, is_coalesced=True, check_invariants=False
        )

    @property
    def pace(self) -> ReplayPace:
        return self._pace


class _BackwardSegment(torch.autograd.Function):
    """One recorded segment of the backward pass: its time passes, then its gradients are there."""

    @staticmethod
    def forward(
        ctx: Any, loss: torch.Tensor, model: ReplayedModel, segment: Segment, rows: Rows, *_: torch.Tensor
    ) -> torch.Tensor:
        ctx.model, ctx.segment, ctx.rows = model, segment, rows
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        found = [ctx.model.gradient(name, ctx.rows) for name in ctx.segment.variables]
        ctx.model.pace.spend(ctx.segment.seconds)
        return (gradients[0], None, None, None, *found)


@known_optimizer
class ReplayedOptimizer(torch.optim.Optimizer):
    """Takes the recorded time for the elements that have a gradient, and changes nothing."""

    moves_touched_rows_alone = True

    def __init__(
        self, parameters: Iterable[Any], *, seconds_per_element: float = 0.0, stands_for: OptimizerSpec | None = None
    ) -> None:
        self.stands_for = stands_for
        self._pace = ReplayPace()
        super().__init__(parameters, {"seconds_per_element": seconds_per_element})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None, "nothing here needs a closure"
        seconds = sum(
            group["seconds_per_element"] * _num_elements(parameter.grad)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        )
        self._pace.spend(seconds)


def _num_updated(variable: Variable) -> int:
    return _num_rows(variable) * variable.shape[1] if variable.sparse else variable.num_elements


def _num_rows(variable: Variable) -> int:
    """How many rows of a sparse variable each batch touches."""
    return round(variable.touched_rows or 0)


def _num_elements(gradient: torch.Tensor) -> int:
    return gradient.coalesce().values().numel() if gradient.is_sparse else gradient.numel()


def _draw_rows(model: ModelSpec, generator: torch.Generator) -> Rows:
    """The rows that one batch touches: as many as the spec says, each as likely as any other."""
    return {variable.name: _rows_of(variable, generator) for variable in model.variables if variable.sparse}


def _rows_of(variable: Variable, generator: torch.Generator) -> torch.Tensor:
    return torch.randperm(variable.shape[0], generator=generator)[: _num_rows(variable)].sort().values
