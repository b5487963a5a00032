"""Replay: a model spec as a task. Compute sleeps for the recorded time; all transfers are real.

The replayed model has the spec's parameters by name and shape. Its forward pass goes through the recorded segments. Its
backward pass produces gradients of the real sizes in the recorded order: rows for sparse gradients, also factors for
linear layers. Its optimizer takes the recorded time for the share of the elements that it updates. Sleeping leaves the
cores to the network, so an emulated cluster can be measured. If the spec has a sample of uses, a step leaves out the
variables that a rank of the sampled step did not use; compute takes the recorded time even so. The numbers in gradients
and parameters have no meaning.
"""

from __future__ import annotations

import functools
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from autosync.runtime.local.optimizer_facts import known_optimizer
from autosync.specs.compute_pace import USUAL, Pace, at_pace
from autosync.specs.graph_batching import GraphBatching, GraphProfile
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Variable
from autosync.specs.task import Task

Rows: TypeAlias = Mapping[str, torch.Tensor]
"""For each variable with sparse gradients, the rows that a batch touches."""

_SLACK_SECONDS = 0.0005
"""The longest lag that later segments make up for, such as a sleep that lasted too long."""


class ReplayPace:
    """The pace of replayed compute: each segment ends when its time is over, including work that was done meanwhile."""

    def __init__(self) -> None:
        self._until = time.perf_counter()

    def spend(self, seconds: float) -> None:
        """Sleep until a segment's time is over. Time lost by waiting for other ranks is not made up for."""
        now = time.perf_counter()
        if now - self._until > _SLACK_SECONDS:
            self._until = now
        self._until += seconds
        remaining = self._until - time.perf_counter()
        if remaining > 0:
            time.sleep(remaining)


def replay_task(model: ModelSpec, *, pace: Pace = USUAL, share: float = 1.0, rank: int = 0, num_ranks: int = 1) -> Task:
    """Return the task that replays a model spec at the pace of a rank, which is one of `num_ranks`.

    `share` is the rank's share of the batch, compared with an even one; its batches touch as many more or fewer rows.
    """
    model = _with_rows(at_pace(model, pace), share)
    # The recorded update touched only the rows of sparse gradients.
    num_elements = sum(_num_updated(variable) for variable in model.variables)
    update_seconds = sum(segment.seconds for segment in model.timeline.optimizer)
    seconds_per_element = update_seconds / num_elements if num_elements else 0.0
    return Task(
        name=model.name,
        model=lambda: ReplayedModel(model, scales_gradients=share != 1, rank=rank, num_ranks=num_ranks),
        batch=lambda generator: _draw_rows(model, generator),
        loss=lambda module, rows: module(rows),
        optimizer=lambda parameters: ReplayedOptimizer(
            parameters, seconds_per_element=seconds_per_element, stands_for=model.optimizer
        ),
        batch_size=model.batch_size,
        accumulation_steps=model.accumulation_steps,
        weight=(lambda _: share) if model.weighs else None,
    )


class _Owner(nn.Module):
    """A module that owns parameters; for the weight of a linear layer, it passes the gradient's factors to hooks."""

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
        """Call the hooks with the factors, when the backward pass reaches the gradient."""
        if self._factors is not None:
            for hook in self._factors_hooks.values():
                hook(*self._factors)


class _ReplayStage(_Owner):
    """A module of the replayed model. Its forward pass does nothing: the model spends its time."""

    def forward(self) -> None:
        return


class _Table(_ReplayStage, nn.Embedding):  # type: ignore[misc]  # it has a stage's forward pass and looks nothing up
    """A stage with a sparse gradient. It is an `nn.Embedding`: stock DDP takes sparse gradients only from those."""

    def __init__(self, num_rows: int, width: int) -> None:
        super().__init__(num_rows, width, sparse=True, device="meta")
        # The model registers the parameter under the name that the spec gives.
        del self.weight


class ReplayedModel(_Owner):
    """A model with the spec's parameters in modules of the original names; its passes take the recorded time.

    With `scales_gradients`, gradients are zero: their memory is used in every step, and is scaled in place each time.
    """

    def __init__(self, model: ModelSpec, *, scales_gradients: bool = False, rank: int = 0, num_ranks: int = 1) -> None:
        super().__init__()
        self._unused_in: Callable[[int], frozenset[str]] = lambda _: frozenset()
        if model.use_sample is not None:
            self._unused_in = functools.partial(model.use_sample.unused_by, rank, num_ranks)
        self._num_microsteps = model.accumulation_steps
        self._microstep = 0
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
                # Zero, so that the gradient stays the product of its factors after synchronisation.
                self._gradients[variable.name] = torch.zeros_like(parameter, requires_grad=False)
                owner.begin_factors(parameter, variable.factor_rows)
            elif not variable.sparse:
                like = torch.zeros_like if scales_gradients else torch.ones_like
                self._gradients[variable.name] = like(parameter, requires_grad=False)
        self._by_name = dict(self.named_parameters())

    def _module(self, name: str, tables: Mapping[str, Variable]) -> _Owner:
        """Return the module of that name, made if missing. `tables` has the sparse variables by their module's name."""
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

    def take_batching(self, batching: GraphBatching, profile: GraphProfile) -> None:
        """Do nothing: the pace of the passes already has what a batching of graphs changes."""

    def forward(self, rows: Rows) -> torch.Tensor:
        unused = self._unused_in(self._microstep // self._num_microsteps)
        self._microstep += 1
        for segment in self._timeline.forward:
            self._pass(_using(segment, unused))
        # Autograd runs the node that is made last first in the backward pass.
        loss = torch.zeros((), requires_grad=True)
        for recorded in reversed(self._timeline.backward):
            segment = _using(recorded, unused)
            parameters = [self._by_name[name] for name in segment.variables]
            loss = _BackwardSegment.apply(loss, self, segment, rows, *parameters)  # type: ignore[no-untyped-call]
        return loss

    def _pass(self, segment: Segment) -> None:
        """Call the segment's modules, so that their hooks run (which wait for parameters), and spend its time."""
        owners = dict.fromkeys(name.rpartition(".")[0] for name in segment.variables)
        for owner in owners:
            if owner:
                self.get_submodule(owner)()
        self._pace.spend(segment.seconds)

    def gradient(self, name: str, rows: Rows) -> torch.Tensor:
        """Return a variable's gradient; for a sparse variable, the rows that the batch touches.

        A dense gradient takes no time, because it is a view of existing memory that autograd takes as it is; copies of
        large gradients would make steps longer than recorded. That memory keeps the result of synchronisation. So if a
        microstep's gradient is added to an earlier one, which lies in the same memory, it is zero.
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

    def parameter(self, name: str) -> nn.Parameter:
        """Return the parameter of a variable."""
        return self._by_name[name]

    @property
    def pace(self) -> ReplayPace:
        return self._pace


class _BackwardSegment(torch.autograd.Function):
    """One recorded segment of the backward pass: it spends its time, then returns its gradients."""

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


def _using(segment: Segment, unused: frozenset[str]) -> Segment:
    """Return a segment without variables that a step does not use."""
    if unused.isdisjoint(segment.variables):
        return segment
    return replace(segment, variables=tuple(name for name in segment.variables if name not in unused))


def backward_of(
    model: ReplayedModel,
    names: Sequence[str],
    seconds: float,
    replaced: Mapping[nn.Parameter, nn.Parameter],
    rows: Rows,
) -> None:
    """Make a backward pass that takes some time and gives gradients to these variables, or to what replaces them.

    `rows` has the touched rows of the sparse ones.
    """
    segment = Segment(module="stage", seconds=seconds, variables=tuple(names))
    owned = [model.parameter(name) for name in names]
    parameters = [replaced.get(one, one) for one in owned]
    begin = torch.zeros((), requires_grad=True)
    loss = _BackwardSegment.apply(begin, model, segment, rows, *parameters)  # type: ignore[no-untyped-call]
    torch.autograd.backward((loss,))


@known_optimizer
class ReplayedOptimizer(torch.optim.Optimizer):
    """An optimizer that takes the recorded time for the elements that have a gradient, and changes nothing."""

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


def _with_rows(model: ModelSpec, share: float) -> ModelSpec:
    """Return the model whose batches touch rows in proportion to their examples."""
    if share == 1:
        return model
    return replace(model, variables=tuple([_sharing(variable, share) for variable in model.variables]))


def _sharing(variable: Variable, share: float) -> Variable:
    if variable.touched_rows is None:
        return variable
    touched = min(variable.touched_rows * share, variable.shape[0])
    return replace(variable, touched_rows=touched, max_touched_rows=variable.shape[0])


def _num_updated(variable: Variable) -> int:
    return _num_rows(variable) * variable.shape[1] if variable.sparse else variable.num_elements


def _num_rows(variable: Variable) -> int:
    """Return the number of rows of a sparse variable that each batch touches."""
    return round(variable.touched_rows or 0)


def _num_elements(gradient: torch.Tensor) -> int:
    return gradient.coalesce().values().numel() if gradient.is_sparse else gradient.numel()


def _draw_rows(model: ModelSpec, generator: torch.Generator) -> Rows:
    """Draw the rows that a batch touches: as many as the spec says, all equally likely."""
    sparse = [variable for variable in model.variables if variable.sparse]
    return {variable.name: draw_rows(variable, _num_rows(variable), generator) for variable in sparse}


def draw_rows(variable: Variable, count: int, generator: torch.Generator) -> torch.Tensor:
    """Draw so many rows of an embedding, all equally likely."""
    return torch.randperm(variable.shape[0], generator=generator)[:count].sort().values
