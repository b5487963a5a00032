"""Finds where a model can be cut: watches which tensors a forward pass makes before a cut and uses after it.

The pass runs once as it is, and every operation on tensors is seen, whichever module or function calls it. So a skip
connection, or an addition between two modules, needs no support by the model, and nothing is traced or exported.
Tensors are told apart by their storages: a view is the tensor that it shows.

A model whose Python code reads the value of a tensor that the model computed cannot be cut, because the profile cannot
see where that value goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autosync.specs.cuts import StageCut
from autosync.specs.profile.recorder import ModelStructure

_READS_VALUE = "aten::_local_scalar_dense"


class FoundCuts(NamedTuple):
    """The cuts of a model, or the reason why it has none."""

    cuts: tuple[StageCut, ...] = ()
    uncut: str = ""


@dataclass(slots=True)
class _Made:
    """A tensor that the pass has made: its segment, and the segments that use it, with the bytes that each uses."""

    storage: StorageWeakRef
    segment: int
    uses: dict[int, int] = field(default_factory=dict)
    has_gradient: bool = False

    def bytes_after(self, cut: int) -> int:
        """Return the bytes that cross a cut."""
        if self.segment >= cut:
            return 0
        return max((num_bytes for segment, num_bytes in self.uses.items() if segment >= cut), default=0)


def find_cuts(structure: ModelStructure, model: nn.Module, forward: Callable[[], Any], batch: Any) -> FoundCuts:
    """Run `forward`, which computes the loss of a batch, and return the model's cuts."""
    scripted = [name for name, module in structure.modules.items() if isinstance(module, torch.jit.ScriptModule)]
    if scripted:
        return FoundCuts(uncut=f"{scripted[0]} is a scripted module, whose calls are not seen")
    watch = _Watch(structure, model, batch)
    with ExitStack() as stack:
        for label, module in structure.modules.items():
            handle = module.register_forward_pre_hook(watch.call_hook(label), prepend=True)
            stack.callback(handle.remove)
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(watch.keep, lambda tensor: tensor))
        stack.enter_context(watch)
        forward()
    return watch.found()


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches the operations of one forward pass."""

    def __init__(self, structure: ModelStructure, model: nn.Module, batch: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: list[str] = []
        self._names = {_key(parameter): name for name, parameter in structure.parameters.items()}
        own = [*model.parameters(), *model.buffers(), *_tensors(batch)]
        # These exist before the pass and on every rank.
        self._given = {_key(tensor) for tensor in own}
        self._made: dict[int, _Made] = {}
        self._all: list[_Made] = []
        self._uses_of: dict[str, set[int]] = {}
        self._kept: dict[int, dict[int, int]] = {}
        self._reader = ""

    @property
    def _segment(self) -> int:
        # What comes before the first call belongs to it, as in the timeline.
        return max(0, len(self._calls) - 1)

    def call_hook(self, label: str) -> Callable[..., None]:
        """Return a hook for the calls of a module."""

        def hook(*_: Any) -> None:
            self._calls.append(label)

        return hook

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note a tensor that autograd keeps for the backward pass."""
        key = _key(tensor)
        if key not in self._given:
            kept = self._kept.setdefault(self._segment, {})
            kept[key] = max(kept.get(key, 0), _num_bytes(tensor))
        return tensor

    def __torch_dispatch__(
        self, func: Any, _: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors((args, kwargs)):
            self._use(func, tensor)
        for tensor in _tensors(result):
            self._make(tensor)
        return result

    def _use(self, func: Any, tensor: torch.Tensor) -> None:
        key = _key(tensor)
        if key in self._names:
            self._uses_of.setdefault(self._names[key], set()).add(self._segment)
        made = self._known(key)
        if made is None:
            return
        made.uses[self._segment] = max(made.uses.get(self._segment, 0), _num_bytes(tensor))
        made.has_gradient |= tensor.requires_grad
        if func.name().startswith(_READS_VALUE) and not self._reader and self._calls:
            self._reader = self._calls[-1]

    def _make(self, tensor: torch.Tensor) -> None:
        key = _key(tensor)
        if key in self._given or self._known(key) is not None:
            return
        made = self._made[key] = _Made(
            StorageWeakRef(tensor.untyped_storage()),  # type: ignore[no-untyped-call]
            self._segment,
        )
        self._all.append(made)

    def _known(self, key: int) -> _Made | None:
        """Return the tensor with this storage; None if it is new, or has the address of one that is gone."""
        made = self._made.get(key)
        if made is None or made.storage.expired():  # type: ignore[no-untyped-call]
            return None
        return made

    def found(self) -> FoundCuts:
        """Return the cuts, from the second call of a module on."""
        if len(self._calls) < 2:
            return FoundCuts(uncut=f"the pass calls {len(self._calls)} modules with parameters (two or more)")
        if self._reader:
            return FoundCuts(uncut=f"the code in or after {self._reader} reads the value of a tensor, as by .item()")
        return FoundCuts(cuts=tuple(map(self._cut, range(1, len(self._calls)))))

    def _cut(self, before: int) -> StageCut:
        crossing = [(made.bytes_after(before), made.has_gradient) for made in self._all]
        kept: dict[int, int] = {}
        for segment, tensors in self._kept.items():
            if segment < before:
                kept |= tensors
        return StageCut(
            before=before,
            num_bytes=sum(num_bytes for num_bytes, has_gradient in crossing if has_gradient),
            constant_bytes=sum(num_bytes for num_bytes, has_gradient in crossing if not has_gradient),
            held_bytes=sum(kept.values()),
            tied=tuple(sorted(name for name, uses in self._uses_of.items() if min(uses) < before <= max(uses))),
        )


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor) and not leaf.is_sparse)


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - torch has no other identity of a storage


def _num_bytes(tensor: torch.Tensor) -> int:
    # An expanded tensor shows the same memory many times.
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
