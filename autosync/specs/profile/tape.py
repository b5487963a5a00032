"""Records a forward pass as the calls of torch functions that it makes, in order.

Every call is seen, whichever module or function makes it. So a skip connection, or an addition between two modules,
needs no support by the model, and nothing is exported or compiled. A recorded call can be made again with other
tensors, and autograd then follows it as it followed the first one.

A pass is divided into segments, as in the timeline: a segment begins at the call of a module that owns parameters. What
a call makes is a *value* with a number. Parameters, buffers and constants are no values: they are on every rank.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from autosync.specs.profile.recorder import ModelStructure
from autosync.specs.profile.untaped_calls import saving_hooks, takes_values, why_lost, why_unseen

_READERS = frozenset(
    getattr(torch.Tensor, name)
    for name in (
        "item",
        "tolist",
        "numpy",
        "equal",
        "allclose",
        "is_nonzero",
        "__bool__",
        "__int__",
        "__float__",
        "__complex__",
        "__index__",
        "__array__",
        "__contains__",
    )
) | {torch.equal, torch.allclose, torch.is_nonzero}


class Slot(NamedTuple):
    """Stands for a value among the arguments of a call."""

    value: int


class TapeCall(NamedTuple):
    """One call: the function, its arguments (`leaves` of the tree `form`), and the values among the results' leaves.

    `results` has pairs of a leaf's position and its value. `mutates` are the values that the call changes in place.
    """

    function: Callable[..., Any]
    leaves: tuple[Any, ...]
    form: Any
    results: tuple[tuple[int, int], ...]
    mutates: tuple[int, ...]
    segment: int
    with_grad: bool

    @property
    def inputs(self) -> list[int]:
        """The values that the call uses."""
        return [leaf.value for leaf in self.leaves if isinstance(leaf, Slot)]

    def make(self, values: Mapping[int, torch.Tensor]) -> list[tuple[int, torch.Tensor]]:
        """Make the call with these values; return the values that it makes."""
        given = [values[leaf.value] if isinstance(leaf, Slot) else leaf for leaf in self.leaves]
        args, kwargs = tree_unflatten(given, self.form)
        if self.with_grad:
            result = self.function(*args, **kwargs)
        else:
            with torch.no_grad():
                result = self.function(*args, **kwargs)
        leaves = [result] if isinstance(result, torch.Tensor) else tree_leaves(result)
        return [(value, leaves[place]) for place, value in self.results]


@dataclass(slots=True, kw_only=True)
class TapeValue:
    """A value: the segment that makes it (-1: a tensor of the batch), the segments that use it, and its form.

    `from_batch` says whether it depends on what the batch's tensors hold.
    """

    made: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    storage: int
    has_gradient: bool = False
    from_batch: bool = False
    uses: set[int] = field(default_factory=set)

    @property
    def num_bytes(self) -> int:
        """The bytes of its elements, one behind the other."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class Tape:
    """A recorded pass.

    `problem` is the reason why it cannot be cut, if there is one. `modules` are the called modules by segment, `batch`
    the values of the batch's tensors, in order, and `loss` the result. `uses` are the segments that use each parameter,
    by name, and `changed` the parameters and buffers that the pass changes. `constants` are tensors that come from
    elsewhere. `from_batch` are the batch's tensors and what the pass has computed from them, where they still exist.
    `keeps_otherwise` says whether the pass decides itself what autograd keeps, as by activation checkpointing.
    """

    def __init__(self) -> None:
        self.problem = ""
        self.modules: list[str] = []
        self.calls: list[TapeCall] = []
        self.values: list[TapeValue] = []
        self.batch: tuple[int, ...] = ()
        self.loss = -1
        self.uses: dict[str, set[int]] = {}
        self.changed: list[str] = []
        self.constants: list[torch.Tensor] = []
        self.from_batch: list[weakref.ref[torch.Tensor]] = []
        self.keeps_otherwise = False
        # The segment and the storage of each change in place.
        self.changes: list[tuple[int, int]] = []

    @property
    def segment(self) -> int:
        """The segment under way. What comes before the first call belongs to it."""
        return max(0, len(self.modules) - 1)

    def crossing(self, before: int) -> list[int]:
        """Return the values that are made before a segment and used in it or after it, in the order of their making."""
        return [
            number
            for number, value in enumerate(self.values)
            if 0 <= value.made < before and any(use >= before for use in value.uses)
        ]

    def is_torn(self, before: int) -> bool:
        """Whether a cut would tear apart values that share memory and are changed in place after it."""
        storages = [self.values[number].storage for number in self.crossing(before)]
        shared = {storage for storage in storages if storages.count(storage) > 1}
        return any(segment >= before and storage in shared for segment, storage in self.changes)


def record(structure: ModelStructure, model: nn.Module, forward: Callable[[], Any], batch: Any) -> Tape:
    """Run `forward`, which computes the loss of a batch, and return its tape."""
    tape = Tape()
    scripted = [name for name, module in structure.modules.items() if isinstance(module, torch.jit.ScriptModule)]
    if scripted:
        tape.problem = f"{scripted[0]} is a scripted module, whose calls are not seen"
    recording = _Recording(tape, structure, model, batch)
    with ExitStack() as stack:
        for label, module in structure.modules.items():
            if not isinstance(module, torch.jit.ScriptModule):
                handle = module.register_forward_pre_hook(_noting(tape, label), prepend=True)
                stack.callback(handle.remove)
        stack.enter_context(recording)
        loss = forward()
    recording.end(loss)
    return tape


def _noting(tape: Tape, label: str) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        tape.modules.append(label)

    return hook


class _Recording(TorchFunctionMode):
    """Notes each call of a torch function on a tape. It keeps all tensors meanwhile, so that no two have one `id`."""

    def __init__(self, tape: Tape, structure: ModelStructure, model: nn.Module, batch: Any) -> None:
        super().__init__()
        self._tape = tape
        self._kept: list[torch.Tensor] = []
        self._numbers: dict[int, int] = {}
        self._parameters = {id(parameter): name for name, parameter in structure.parameters.items()}
        own = [*model.named_parameters(), *model.named_buffers()]
        self._own = {id(tensor): name for name, tensor in own}
        self._versions = {name: (tensor, tensor._version) for name, tensor in own}  # noqa: SLF001 - torch's counter of changes has no other name
        self._constants: set[int] = set()
        self._saving = saving_hooks()
        # Values that had no gradient when they were last made or changed.
        self._without_gradient: set[int] = set()
        tape.batch = tuple(self._add(tensor, made=-1, from_batch=True) for tensor in tensors_of(batch))

    def end(self, loss: torch.Tensor) -> None:
        """Finish the tape: note what is only known at the end."""
        tape = self._tape
        for tensor in self._kept:
            value = tape.values[self._numbers[id(tensor)]]
            value.has_gradient = tensor.requires_grad
            if value.from_batch:
                tape.from_batch.append(weakref.ref(tensor))
        tape.loss = self._numbers.get(id(loss), -1)
        # A change of `.data` counts no version.
        changed = {storage for _, storage in tape.changes}
        tape.changed = [
            name
            for name, (tensor, before) in self._versions.items()
            if tensor._version != before or _storage(tensor) in changed  # noqa: SLF001 - see above
        ]
        if tape.loss < 0 and not tape.problem:
            tape.problem = "its loss is computed by code whose calls are not seen"
        elif tape.loss >= 0:
            tape.values[tape.loss].uses.add(tape.segment)
            self._refuse_unseen(tape.loss, loss)

    def __torch_function__(
        self, func: Any, _: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.__iter__:
            # The tensors within an iterator are not seen; those of a tuple are.
            with self:
                return iter(args[0].unbind(0))
        given, form = tree_flatten((args, dict(kwargs or {})))
        tensors = [leaf for leaf in given if isinstance(leaf, torch.Tensor)]
        if reason := why_unseen(tensors):
            self._refuse(reason)
            return func(*args, **(kwargs or {}))
        before = [tensor._version for tensor in tensors]  # noqa: SLF001 - see above
        needed = [tensor.requires_grad for tensor in tensors]
        result = func(*args, **(kwargs or {}))
        turned = needed != [tensor.requires_grad for tensor in tensors]
        if reason := why_lost(func, turns_gradients=turned):
            self._refuse(reason)
        changed = [tensor for tensor, version in zip(tensors, before, strict=True) if tensor._version != version]  # noqa: SLF001 - see above
        self._note(func, given, form, tree_leaves(result), changed)
        return result

    def _note(
        self, func: Any, given: Sequence[Any], form: Any, results: Sequence[Any], changed: Sequence[torch.Tensor]
    ) -> None:
        tape, segment = self._tape, self._tape.segment
        leaves = tuple(self._argument(func, leaf) for leaf in given)
        from_batch = any(
            tape.values[leaf.value].from_batch and takes_values(func, place)
            for place, leaf in enumerate(leaves)
            if isinstance(leaf, Slot)
        )
        made = [
            (place, self._add(leaf, made=segment, from_batch=from_batch))
            for place, leaf in enumerate(results)
            if isinstance(leaf, torch.Tensor) and not self._is_known(leaf)
        ]
        tape.changes += [(segment, _storage(tensor)) for tensor in changed]
        if not made and not changed:
            return
        if torch.is_autocast_enabled("cpu") and not tape.problem:
            tape.problem = "it runs under autocast, whose casts are not recorded"
        tape.keeps_otherwise |= saving_hooks() != self._saving
        mutates = tuple(self._numbers[id(tensor)] for tensor in changed if id(tensor) in self._numbers)
        self._without_gradient.difference_update(mutates)
        for number in mutates:
            tape.values[number].from_batch |= from_batch
        tape.calls.append(TapeCall(func, leaves, form, tuple(made), mutates, segment, torch.is_grad_enabled()))

    def _argument(self, func: Any, leaf: Any) -> Any:
        """Return an argument as the tape has it, and note its use."""
        tape = self._tape
        if isinstance(leaf, slice) and any(isinstance(end, torch.Tensor) for end in (leaf.start, leaf.stop, leaf.step)):
            self._refuse_reading()
        if not isinstance(leaf, torch.Tensor):
            return leaf
        number = self._numbers.get(id(leaf))
        if number is not None:
            value = tape.values[number]
            value.uses.add(tape.segment)
            self._refuse_unseen(number, leaf)
            if func in _READERS:
                self._refuse_reading()
            return Slot(number)
        if id(leaf) in self._parameters:
            if func in _READERS:
                self._refuse_reading()
            tape.uses.setdefault(self._parameters[id(leaf)], set()).add(tape.segment)
        elif id(leaf) not in self._own:
            self._refuse_gradient(leaf)
            if id(leaf) not in self._constants:
                self._constants.add(id(leaf))
                tape.constants.append(leaf)
        return leaf

    def _refuse_gradient(self, constant: torch.Tensor) -> None:
        """Refuse a tensor from elsewhere that gets a gradient. A teacher's parameter under no_grad gets none."""
        if not constant.requires_grad:
            return
        if not constant.is_leaf:
            self._refuse_code()
        elif torch.is_grad_enabled():
            self._refuse(
                "uses a tensor outside the model that needs a gradient (a parameter is in the model, and what is not "
                "trained is used under torch.no_grad())"
            )

    def _refuse_unseen(self, number: int, tensor: torch.Tensor) -> None:
        """Refuse a tensor that has got a gradient outside recorded calls, as the result of an autograd function."""
        if tensor.requires_grad and number in self._without_gradient:
            self._refuse_code()

    def _refuse_code(self) -> None:
        tape = self._tape
        if not tape.problem:
            where = tape.modules[-1] if tape.modules else "its first module"
            tape.problem = (
                f"a tensor in or after {where} comes from code whose calls are not seen: an autograd function, or "
                "compiled code"
            )

    def _refuse_reading(self) -> None:
        self._refuse("reads the value of a tensor, as by .item()")

    def _refuse(self, what: str) -> None:
        """Say that the code here does something that cannot be recorded."""
        tape = self._tape
        if not tape.problem:
            where = f"in or after {tape.modules[-1]}" if tape.modules else "before its first module"
            tape.problem = f"the code {where} {what}"

    def _is_known(self, tensor: torch.Tensor) -> bool:
        key = id(tensor)
        return key in self._numbers or key in self._own or key in self._constants

    def _add(self, tensor: torch.Tensor, *, made: int, from_batch: bool) -> int:
        tape = self._tape
        number = self._numbers[id(tensor)] = len(tape.values)
        self._kept.append(tensor)
        if not tensor.requires_grad:
            self._without_gradient.add(number)
        tape.values.append(
            TapeValue(
                made=made,
                shape=tuple(tensor.shape),
                dtype=tensor.dtype,
                storage=_storage(tensor),
                from_batch=from_batch,
            )
        )
        return number


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a batch, each once, in a fixed order."""
    from autosync.specs.task_run import map_tensors

    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors(value, note)
    return list({id(tensor): tensor for tensor in found}.values())


def _storage(tensor: torch.Tensor) -> int:
    if tensor.layout != torch.strided:
        return id(tensor)
    try:
        return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - torch has no other identity of a storage
    except (RuntimeError, NotImplementedError):
        # Tensors that torch itself wraps have none.
        return id(tensor)
