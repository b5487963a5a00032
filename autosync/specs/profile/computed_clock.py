"""A clock that computes its time: the model runs on torch's `meta` device, where tensors have shapes and no values.

Each operation adds its computed time, in the forward and in the backward pass. So the recorder that measures real
devices can also tell how long each module would take on a device that this machine lacks. Orders are the same as on any
device.

Tensors on `meta` have no values, but the rows that an embedding touches depend on values. Integer tensors are small, so
the clock keeps a shadow of each, a copy with values, and repeats operations on integers with the shadows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakIdKeyDictionary

from autosync.specs.profile.device_rates import OperationRate
from autosync.specs.profile.operations import class_of

META = torch.device("meta")
# These operations read the rows that they look up, not the whole table.
_LOOKUPS = {"aten::embedding", "aten::_embedding_bag", "aten::index_select", "aten::gather"}
# These operations touch no memory, although they are no views.
_FREE = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::detach", "aten::_unsafe_view"}


class ComputedClock(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the times of all operations in its block, and counts them."""

    def __init__(self, rate: OperationRate) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rate = rate
        self._now = 0.0
        self.num_operations = 0
        self._shadows: Any = WeakIdKeyDictionary()

    def mark(self) -> float:
        return self._now

    def seconds(self, marks: Sequence[float]) -> list[float]:
        return [end - start for start, end in itertools.pairwise(marks)]

    def to_meta(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor without values on `meta`; the clock keeps the values of integers."""
        moved = tensor.to(META)
        if _has_shadow(tensor):
            self._shadows[moved] = tensor
        return moved

    def strip(self, model: nn.Module) -> None:
        """Move a model to `meta`. Unlike `Module.to`, this keeps shared parameters shared."""
        stripped: dict[int, nn.Parameter] = {}
        for module in model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if parameter.device != META:
                    own = nn.Parameter(parameter.detach().to(META), requires_grad=parameter.requires_grad)
                    setattr(module, name, stripped.setdefault(id(parameter), own))
            for name, buffer in list(module.named_buffers(recurse=False)):
                if buffer.device != META:
                    setattr(module, name, self.to_meta(buffer))

    def values(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the values of an integer tensor, or None if they are unknown."""
        if tensor.device != META:
            return tensor
        found: torch.Tensor | None = self._shadows.get(tensor)
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self._count(func, args, kwargs, result)
        self._shadow(func, args, kwargs, result)
        return result

    def _count(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = func._schema.name  # noqa: SLF001 - operators give no public access to their schema
        if func.is_view or name in _FREE:
            return
        inputs = args[1:] if name in _LOOKUPS else args
        num_bytes = sum(_num_bytes(tensor) for tensor in _tensors((inputs, kwargs, result)))
        kind = class_of(func, args, kwargs)
        if kind == "grouped_convolution" and name.endswith("backward"):
            operations = grouped_backward_operations(*args[:3], transposed=args[7], wanted=args[10])
        else:
            count = flop_registry.get(func._overloadpacket)  # noqa: SLF001 - flop_counter's own table is keyed by it
            operations = count(*args, **kwargs, out_val=result) if count is not None else 0
        self._now += self._rate.seconds(kind, operations, num_bytes)
        self.num_operations += 1

    def _shadow(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Repeat the operation on values if the values of all its inputs are known and its results are integers."""
        results = list(_tensors(result))
        if not results or not all(_has_shadow(tensor) for tensor in results):
            return
        inputs = list(_tensors((args, kwargs)))
        if any(self.values(tensor) is None for tensor in inputs):
            return
        on_values = tree_map(self._on_cpu, (list(args), kwargs))
        outcome = list(_tensors(func(*on_values[0], **on_values[1])))
        for tensor, values in zip(results, outcome, strict=True):
            self._shadows[tensor] = values

    def _on_cpu(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.values(value)
        return torch.device("cpu") if value == META else value


def grouped_backward_operations(
    gradient: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor, *, transposed: bool, wanted: Sequence[bool]
) -> int:
    """Return the operations of a grouped convolution's backward pass.

    The gradient of its inputs takes as many as its forward pass, and that of its weight too. torch's own counter takes
    the gradient of the weight for that of a convolution with one group.
    """
    places = inputs if transposed else gradient
    return 2 * math.prod(places.shape) * math.prod(weight.shape[1:]) * (wanted[0] + wanted[1])


def _tensors(tree: Any) -> Iterable[torch.Tensor]:
    return (leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor))


def _has_shadow(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex()) and tensor.layout is torch.strided


def _num_bytes(tensor: torch.Tensor) -> int:
    if tensor.layout is not torch.strided:
        # The rows of a sparse tensor are counted when they are made, as a dense tensor.
        return 0
    return math.prod(tensor.shape) * tensor.element_size()
