"""Runs microsteps of a task and records them: calls, uses, the order in which gradients become ready, and times.

In the forward pass, a segment begins at the call of a module that owns parameters and lasts until the next such call.
So its parameters are needed at its beginning, and the segments add up to the whole pass. In the backward pass, a
segment ends when a gradient becomes ready and begins when the previous segment ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from autosync.specs import task_run
from autosync.specs.profile.clock import Clock
from autosync.specs.profile.graph import ParameterUses, read_uses, sequence_of, with_hidden_uses
from autosync.specs.profile.inert_hook import as_nothing
from autosync.specs.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCall:
    """A call of a module that owns parameters. `sequence` is its position among autograd's records (-1: unknown)."""

    module: str
    factor_rows: int | None = None
    sequence: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Microstep:
    """The record of one forward and backward pass.

    `forward_seconds` has the time before the first call, then one entry for each call. `backward_seconds` has one entry
    for each gradient in `ready`, then the time after the last.
    """

    calls: tuple[ModuleCall, ...]
    forward_seconds: tuple[float, ...]
    ready: tuple[str, ...]
    backward_seconds: tuple[float, ...]
    uses: Mapping[str, ParameterUses]

    @property
    def modules(self) -> tuple[str, ...]:
        """The called modules, in order."""
        return tuple(call.module for call in self.calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStructure:
    """The structure of a model: parameters by name in order of declaration, their aliases, and their modules."""

    parameters: Mapping[str, nn.Parameter]
    aliases: Mapping[str, tuple[str, ...]]
    owners: Mapping[str, str]
    owned: Mapping[str, tuple[str, ...]]
    modules: Mapping[str, nn.Module]


def structure_of(model: nn.Module) -> ModelStructure:
    """Return the parameters of a model and the modules that own them. The model itself has the name of its class."""
    parameters = dict(model.named_parameters())
    names = {id(parameter): name for name, parameter in parameters.items()}
    aliases: dict[str, list[str]] = {name: [] for name in parameters}
    for alias, parameter in model.named_parameters(remove_duplicate=False):
        if names[id(parameter)] != alias:
            aliases[names[id(parameter)]].append(alias)
    owners: dict[str, str] = {}
    owned: dict[str, tuple[str, ...]] = {}
    modules = {}
    for path, module in model.named_modules():
        own = tuple(names[id(parameter)] for parameter in module.parameters(recurse=False))
        if own:
            place, holder = _where_hooks_can_be(model, path, module)
            label = place or type(model).__name__
            owned[label], modules[label] = (*owned.get(label, ()), *own), holder
            for name in own:
                owners.setdefault(name, label)
    return ModelStructure(
        parameters=parameters,
        aliases={name: tuple(others) for name, others in aliases.items()},
        owners=owners,
        owned=owned,
        modules=modules,
    )


def _where_hooks_can_be(model: nn.Module, path: str, module: nn.Module) -> tuple[str, nn.Module]:
    """Return the module, or the nearest enclosing module that takes hooks: scripted modules take none."""
    while path and isinstance(module, torch.jit.ScriptModule):
        path = path.rpartition(".")[0]
        # A scripted model does not look up its modules itself.
        module = dict(model.named_modules())[path]
    return path, module


@dataclass
class MicrostepRecorder:
    """Records one microstep at a time through hooks in a model."""

    structure: ModelStructure
    clock: Clock
    # Asking autograd for its position takes time, so this is done only in a step that is not measured.
    asks_sequence: bool = False
    _in_forward: bool = field(default=False, init=False)
    _calls: list[ModuleCall] = field(default_factory=list, init=False)
    _ready: list[str] = field(default_factory=list, init=False)
    _marks: list[Any] = field(default_factory=list, init=False)
    _forward_marks: list[Any] = field(default_factory=list, init=False)
    _uses: Mapping[str, ParameterUses] = field(default_factory=dict, init=False)

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Keep the hooks in the model during the block."""
        handles: list[Any] = []
        for label, module in self.structure.modules.items():
            if isinstance(module, torch.jit.ScriptModule):
                # The whole model is scripted: its calls cannot be seen.
                continue
            hook = _Hook(self._call_hook(label))
            handles.append(module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True))
        for name, parameter in self.structure.parameters.items():
            # A parameter without elements needs no synchronisation.
            if parameter.requires_grad and parameter.numel() > 0:
                handles.append(parameter.register_post_accumulate_grad_hook(self._ready_hook(name)))  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def microstep(self, task: Task, model: nn.Module, batch: Any) -> Microstep:
        """Run one forward and backward pass. Gradients are added to the existing ones."""
        self.forward_begins()
        try:
            loss = task_run.compute_loss(task, model, batch)
        finally:
            self._in_forward = False
        self.forward_ends([loss])
        task_run.run_backward(task, loss)
        return self.microstep_ends(self.clock.mark())

    def forward_begins(self) -> None:
        """Begin to record a microstep: its forward pass begins."""
        self._calls, self._ready = [], []
        self._marks = [self.clock.mark()]
        self._in_forward = True

    def forward_ends(self, outputs: Sequence[torch.Tensor]) -> None:
        """Record the end of the forward pass, and how it used the parameters; the backward pass begins."""
        self._in_forward = False
        self._forward_marks = [*self._marks, self.clock.mark()]
        names = {id(parameter): name for name, parameter in self.structure.parameters.items()}
        self._uses = read_uses(outputs, names)
        self._marks = [self.clock.mark()]

    def microstep_ends(self, mark: Any = None) -> Microstep:
        """Return the record of the microstep, whose backward pass has ended: at `mark`, or with its last gradient."""
        backward_marks = [*self._marks, self._marks[-1] if mark is None else mark]
        return Microstep(
            calls=tuple(self._calls),
            forward_seconds=tuple(self.clock.seconds(self._forward_marks)),
            ready=tuple(self._ready),
            backward_seconds=tuple(self.clock.seconds(backward_marks)),
            uses=with_hidden_uses(self._uses, self._ready),
        )

    def _call_hook(self, label: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # Checkpointing calls modules again in the backward pass; these calls are no uses in the forward pass.
            if not self._in_forward:
                return
            sequence = _sequence_now() if self.asks_sequence else -1
            rows = _factor_rows(module, args, kwargs)
            self._calls.append(ModuleCall(module=label, factor_rows=rows, sequence=sequence))
            self._marks.append(self.clock.mark())

        return hook

    def _ready_hook(self, name: str) -> Callable[[torch.Tensor], None]:
        def hook(_: torch.Tensor) -> None:
            self._ready.append(name)
            self._marks.append(self.clock.mark())

        return hook


class _Hook:
    """A hook of a module. A copy of it, deep or by pickling, does nothing, and needs none of our code."""

    __slots__ = ("_record",)

    def __init__(self, record: Callable[..., None]) -> None:
        self._record = record

    def __call__(self, *arguments: Any) -> None:
        self._record(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return as_nothing()


def _factor_rows(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Return the rows of a linear layer's input matrix (batch × tokens); None for other modules.

    A layer that computes in another type than its weight's has none: its factors are not those of its gradient.
    """
    if not isinstance(module, nn.Linear) or type(module).forward is not nn.Linear.forward:
        return None
    inputs = args[0] if args else kwargs.get("input")
    if not isinstance(inputs, torch.Tensor) or module.in_features == 0:
        return None
    # A weight that other code computes (a parametrization) is no parameter, and to ask for it would run that code.
    weight = module._parameters.get("weight")  # noqa: SLF001 - `named_parameters` is slow, and steps are timed
    if weight is None or inputs.dtype != weight.dtype or _is_cast(weight):
        return None
    return inputs.numel() // module.in_features


def _is_cast(weight: torch.Tensor) -> bool:
    """Whether torch.autocast computes with this weight in another type."""
    if weight.dtype == torch.float64:
        # It leaves them alone.
        return False
    # A computed profile runs on no device.
    devices = ("cpu", "cuda") if weight.is_meta else (weight.device.type,)
    return any(torch.is_autocast_enabled(one) and torch.get_autocast_dtype(one) != weight.dtype for one in devices)


def _sequence_now() -> int:
    """Return the position that autograd gives to a record made now."""
    with torch.enable_grad():
        probe = torch.zeros((), device="cpu", requires_grad=True) * 1
    return sequence_of(probe.grad_fn)
