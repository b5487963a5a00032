"""Factors of gradients: a linear layer's weight has the gradient outputsᵀ · inputs, which are smaller than it.

`outputs` are the gradients of the layer's outputs and `inputs` its inputs, one row for each example (or word) of the
batch. Hooks on the layer take them down as they pass. That they really make up the gradient is checked in every step,
for a weight may be used in other ways than by its layer's one call: then its gradient is something else.

What a rank keeps of a `factors` region (`Memory.put`) is a `Pair` of its own at first, and a list of those of all
members after the gather.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from autosync.errors import OperationError
from autosync.plan.types import Plan
from autosync.runtime.memory.regions import Memory
from autosync.runtime.memory.unused_variables import NOTHING
from autosync.strategy.parts import Part

_NUM_CHECKED_ROWS = 16

# How much wider than the usual rounding of a sum of so many products a difference may be.
_ROUNDING_MARGIN = 16.0

_INSTEAD = "(synchronise it by another synchroniser: sufficient_factors is for a layer that is called once a step)"


class Pair(NamedTuple):
    """The two factors of a gradient, with as many rows each."""

    outputs: torch.Tensor
    inputs: torch.Tensor


# Packing for the wire.


def pack_factors(pair: Pair) -> torch.Tensor:
    """One buffer of bytes: all of the outputs' gradients, then all of the inputs."""
    return torch.cat([matrix.contiguous().view(-1).view(torch.uint8) for matrix in pair])


def unpack_factors(buffer: torch.Tensor, part: Part, dtype: torch.dtype) -> Pair:
    """The inverse of `pack_factors`, for the factors of a part. What comes back may share the buffer's memory."""
    width, depth = part.shape
    if buffer.data_ptr() % dtype.itemsize or buffer.storage_offset() % dtype.itemsize:
        buffer = buffer.clone()
    num_rows, rest = divmod(len(buffer), (width + depth) * dtype.itemsize)
    if rest:
        raise OperationError(f"{len(buffer)} bytes of factors of {part.name}, which have {width} and {depth} columns")
    numbers = buffer.view(dtype)
    split = num_rows * width
    return Pair(numbers[:split].view(num_rows, width), numbers[split:].view(num_rows, depth))


# Arithmetic.


def cut_factors(pair: Pair, part: Part) -> Pair:
    """The factors of a part of the weight: its columns of one of them, and all of the other."""
    if part.name.whole:
        return pair
    if part.axis == 0:
        return Pair(pair.outputs[:, part.begin : part.end], pair.inputs)
    return Pair(pair.outputs, pair.inputs[:, part.begin : part.end])


def rebuild(contributions: Sequence[Pair], num_workers: int, gradient: torch.Tensor) -> bool:
    """The average of the gradients that the pairs stand for, into a flat gradient; whether any rank has one."""
    outputs = torch.cat([pair.outputs for pair in contributions])
    inputs = torch.cat([pair.inputs for pair in contributions])
    if not len(outputs):
        gradient.fill_(NOTHING)
        return False
    outputs.div_(num_workers)
    torch.mm(outputs.t(), inputs, out=gradient.view(outputs.shape[1], inputs.shape[1]))
    return True


def mismatch(pair: Pair, gradient: torch.Tensor, rows: torch.Tensor) -> bool:
    """Whether some of a gradient's rows are something else than the factors' product, up to rounding."""
    outputs, inputs = pair.outputs[:, rows].double().t(), pair.inputs.double()
    difference = (gradient[rows].double() - outputs @ inputs).abs()
    terms = outputs.abs() @ inputs.abs()
    unit = _unit_roundoff(gradient)
    tolerance = _ROUNDING_MARGIN * unit * math.sqrt(max(1, len(inputs))) * terms + torch.finfo(gradient.dtype).tiny
    # What is infinite or no number in the one is so in the other; there is nothing to tell them apart by.
    return bool((difference > tolerance).any())


def _unit_roundoff(gradient: torch.Tensor) -> float:
    """That of the gradient's type, or of what its matrix products were allowed to round to."""
    unit = torch.finfo(gradient.dtype).eps
    if gradient.dtype != torch.float32:
        return unit
    allowed = {"highest": unit, "high": 2.0**-10, "medium": 2.0**-7}[torch.get_float32_matmul_precision()]
    return max(allowed, 2.0**-10) if gradient.is_cuda and torch.backends.cuda.matmul.allow_tf32 else allowed


def _of_rows(num_rows: int, like: torch.Tensor) -> Pair:
    """So many rows of zeros, as factors of a matrix of this shape."""
    return Pair(like.new_zeros((num_rows, like.shape[0])), like.new_zeros((num_rows, like.shape[1])))


# One rank's factors.


@runtime_checkable
class KnowsFactors(Protocol):
    """A layer that is no `torch.nn.Linear` and tells its factors by itself, as a replayed one does.

    In each backward pass it calls the hook with inputs and outputs' gradients before its weight's gradient is complete.
    """

    def register_factors_hook(self, hook: Callable[[torch.Tensor, torch.Tensor], None]) -> Any: ...


class Factors:
    """Takes down the factors of one rank's gradients. `variables` are the names of those that travel as factors.

    For these, `take` comes after `Memory.take_gradient`: the gradient's own memory is where the average is put.
    """

    def __init__(self, plan: Plan, memory: Memory) -> None:
        self._plan = plan
        self._memory = memory
        self._regions: dict[str, list[tuple[Part, int]]] = {}
        for index, region in enumerate(plan.regions):
            if region.kind == "factors":
                part = plan.parts[region.part]
                self._regions.setdefault(part.variable.name, []).append((part, index))
        self._pairs: dict[str, list[Pair]] = {name: [] for name in self._regions}
        self._generator = torch.Generator().manual_seed(0)
        self._checked: set[str] = set()
        self._hooks: list[Any] = []

    @property
    def variables(self) -> frozenset[str]:
        return frozenset(self._regions)

    def attach(self, model: torch.nn.Module) -> None:
        """Put hooks on the layers; what is no weight of a linear layer, and of one alone, is refused."""
        for name in self._regions:
            weight = self._memory.parameter(name)
            owners = [m for m in model.modules() if any(p is weight for p in m.parameters(recurse=False))]
            if len(owners) == 1 and isinstance(owners[0], KnowsFactors):
                self._hooks.append(owners[0].register_factors_hook(functools.partial(self._backward, name)))
                continue
            if len(owners) != 1 or not isinstance(owners[0], torch.nn.Linear) or owners[0].weight is not weight:
                kinds = " and a ".join(type(owner).__name__ for owner in owners)
                raise OperationError(f"{name} belongs to a {kinds}, not to one Linear layer {_INSTEAD}")
            hook = functools.partial(self._forward, name)
            self._hooks.append(owners[0].register_forward_hook(hook, with_kwargs=True))

    def close(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def keep(self, name: str, pair: Pair) -> None:
        """The backward pass went through a call of its layer."""
        self._pairs[name].append(pair)

    def take(self, name: str, gradient: torch.Tensor, iteration: int) -> None:
        """A variable's gradient is complete: bring its factors to where their transfer finds them."""
        pairs = self._pairs[name]
        if len(pairs) != 1:
            found = f"{len(pairs)} calls of its layer" if pairs else "no call of its layer"
            raise OperationError(f"the gradient of {name} came from {found} {_INSTEAD}")
        pair = pairs.pop()
        self._check(name, pair, gradient)
        if not len(pair.outputs):
            # A batch without examples: the layer was used, and its gradient is zero.
            pair = _of_rows(1, gradient)
        for part, region in self._regions[name]:
            self._memory.put(region, iteration, cut_factors(pair, part))

    def take_nothing(self, name: str, iteration: int) -> None:
        """This rank has no gradient of a variable."""
        self._pairs[name].clear()
        pair = _of_rows(0, self._memory.parameter(name).detach())
        for part, region in self._regions[name]:
            self._memory.put(region, iteration, cut_factors(pair, part))

    def forget(self, name: str) -> None:
        """A gradient of the variable was accumulated that is not synchronised by itself."""
        self._pairs[name].clear()

    def _forward(
        self, name: str, _: torch.nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any], output: Any
    ) -> None:
        if not torch.is_grad_enabled() or not output.requires_grad:
            return
        inputs = arguments[0] if arguments else named["input"]
        dtype = self._memory.parameter(name).dtype
        if inputs.dtype != dtype or output.dtype != dtype:
            raise OperationError(
                f"{name} is {dtype}, but its layer computed with {inputs.dtype} and gave {output.dtype}: its factors "
                "are then not those of its gradient (train without autocast, or synchronise it by another synchroniser)"
            )
        output.register_hook(functools.partial(self._backward, name, inputs.detach()))

    def _backward(self, name: str, inputs: torch.Tensor, gradient: torch.Tensor) -> None:
        outputs = gradient.detach()
        self.keep(name, Pair(outputs.reshape(-1, outputs.shape[-1]), inputs.reshape(-1, inputs.shape[-1])))

    def _check(self, name: str, pair: Pair, gradient: torch.Tensor) -> None:
        """All rows of the gradient in the first step, and some at random in every other."""
        fits = gradient.shape == (pair.outputs.shape[1], pair.inputs.shape[1]) and len(pair.outputs) == len(pair.inputs)
        num_rows = len(gradient)
        rows = torch.arange(num_rows)
        if name in self._checked:
            rows = torch.randint(num_rows, (min(num_rows, _NUM_CHECKED_ROWS),), generator=self._generator)
        self._checked.add(name)
        if not fits or any(mismatch(pair, gradient, some.to(gradient.device)) for some in torch.split(rows, 256)):
            raise OperationError(
                f"the gradient of {name} is not the product of what its layer's one call got and gave: the weight is "
                f"used in another way too, or its gradient was not set to zero before {_INSTEAD}"
            )
