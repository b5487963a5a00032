"""Factors of gradients: a linear layer's weight has the gradient outputsᵀ · inputs, and the two factors are smaller.

`outputs` are the gradients of the layer's outputs and `inputs` its inputs, with one row for each example (or word) of
the batch. Hooks on the layer record them. Every step checks that their product is the gradient; this fails if a weight
is used in other ways than by one call of its layer.

For a `factors` region, a rank first keeps (`Memory.put`) its own `Pair`, and after the gather a list of the pairs of
all members.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from autosync.errors import OperationError
from autosync.plan.types import Plan
from autosync.runtime.memory.byte_views import as_bytes
from autosync.runtime.memory.regions import Memory
from autosync.runtime.memory.unused_variables import NOTHING
from autosync.runtime.session.hooks import Hook
from autosync.strategy.parts import Part

_NUM_CHECKED_ROWS = 16

# A difference is accepted up to this many times the usual rounding of a sum of so many products.
_ROUNDING_MARGIN = 16.0

_INSTEAD = "(synchronise it by another synchroniser: sufficient_factors is for a layer that is called once a step)"


class Pair(NamedTuple):
    """The two factors of a gradient, which have the same number of rows."""

    outputs: torch.Tensor
    inputs: torch.Tensor


class ProductCheck:
    """Checks whether gradients are the products of their factors.

    It looks at all rows of a variable's gradient the first time, and at random rows later.
    """

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(0)
        self._checked: set[str] = set()

    def fits(self, name: str, pair: Pair, gradient: torch.Tensor) -> bool:
        """Whether the product of a pair is the gradient of the variable of this name, but for rounding."""
        num_rows = len(gradient)
        rows = torch.arange(num_rows)
        if name in self._checked:
            rows = torch.randint(num_rows, (min(num_rows, _NUM_CHECKED_ROWS),), generator=self._generator)
        self._checked.add(name)
        shape = (pair.outputs.shape[1], pair.inputs.shape[1])
        if gradient.shape != shape or len(pair.outputs) != len(pair.inputs):
            return False
        return not any(mismatch(pair, gradient, some.to(gradient.device)) for some in torch.split(rows, 256))


# Packing for the wire.


def pack_factors(pair: Pair) -> torch.Tensor:
    """Pack a pair into one buffer of bytes: first all of the outputs' gradients, then all of the inputs."""
    return torch.cat([as_bytes(matrix) for matrix in pair])


def unpack_factors(buffer: torch.Tensor, part: Part, dtype: torch.dtype) -> Pair:
    """Unpack the factors of a part: the inverse of `pack_factors`. The result may share the buffer's memory."""
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
    """Return the factors of a part of the weight: some columns of one factor, and all of the other."""
    if part.name.whole:
        return pair
    if part.axis == 0:
        return Pair(pair.outputs[:, part.begin : part.end], pair.inputs)
    return Pair(pair.outputs, pair.inputs[:, part.begin : part.end])


def rebuild(contributions: Sequence[Pair], num_workers: int, gradient: torch.Tensor) -> bool:
    """Write the average of the pairs' gradients into a flat gradient; return whether any rank has a gradient."""
    outputs = torch.cat([pair.outputs for pair in contributions])
    inputs = torch.cat([pair.inputs for pair in contributions])
    if not len(outputs):
        gradient.fill_(NOTHING)
        return False
    outputs.div_(num_workers)
    torch.mm(outputs.t(), inputs, out=gradient.view(outputs.shape[1], inputs.shape[1]))
    return True


def mismatch(pair: Pair, gradient: torch.Tensor, rows: torch.Tensor) -> bool:
    """Whether some rows of a gradient differ from the factors' product by more than rounding."""
    outputs, inputs = pair.outputs[:, rows].double().t(), pair.inputs.double()
    difference = (gradient[rows].double() - outputs @ inputs).abs()
    terms = outputs.abs() @ inputs.abs()
    unit = _unit_roundoff(gradient)
    tolerance = _ROUNDING_MARGIN * unit * math.sqrt(max(1, len(inputs))) * terms + torch.finfo(gradient.dtype).tiny
    # An infinity or a NaN appears in both alike, and cannot show a difference.
    return bool((difference > tolerance).any())


def _unit_roundoff(gradient: torch.Tensor) -> float:
    """Return the unit roundoff of the gradient's type, or the coarser one that its matrix products may use."""
    unit = torch.finfo(gradient.dtype).eps
    if gradient.dtype != torch.float32:
        return unit
    allowed = {"highest": unit, "high": 2.0**-10, "medium": 2.0**-7}[torch.get_float32_matmul_precision()]
    return max(allowed, 2.0**-10) if gradient.is_cuda and torch.backends.cuda.matmul.allow_tf32 else allowed


def _of_rows(num_rows: int, like: torch.Tensor) -> Pair:
    """Return `num_rows` rows of zeros, as factors of a matrix with the shape of `like`."""
    return Pair(like.new_zeros((num_rows, like.shape[0])), like.new_zeros((num_rows, like.shape[1])))


# One rank's factors.


@runtime_checkable
class KnowsFactors(Protocol):
    """A layer that is no `torch.nn.Linear` and reports its factors itself, as a replayed layer does.

    In each backward pass it calls the hook with its inputs and its outputs' gradients, before its weight's gradient is
    complete.
    """

    def register_factors_hook(self, hook: Callable[[torch.Tensor, torch.Tensor], None]) -> Any: ...


class Factors:
    """Records the factors of one rank's gradients. `variables` are the names of the variables that travel as factors.

    For these variables, `take` comes after `Memory.take_gradient`, because the average is written to the gradient's own
    memory.
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
        self._product = ProductCheck()
        self._hooks: list[Any] = []

    @property
    def variables(self) -> frozenset[str]:
        return frozenset(self._regions)

    def attach(self, model: torch.nn.Module) -> None:
        """Put hooks on the layers; refuse a variable that is not the weight of exactly one linear layer."""
        for name in self._regions:
            weight = self._memory.parameter(name)
            owners = [m for m in model.modules() if any(p is weight for p in m.parameters(recurse=False))]
            if len(owners) == 1 and isinstance(owners[0], KnowsFactors):
                self._hooks.append(owners[0].register_factors_hook(Hook(functools.partial(self._backward, name))))
                continue
            if len(owners) != 1 or not isinstance(owners[0], torch.nn.Linear) or owners[0].weight is not weight:
                kinds = " and a ".join(type(owner).__name__ for owner in owners)
                raise OperationError(f"{name} belongs to a {kinds}, not to one Linear layer {_INSTEAD}")
            hook = Hook(functools.partial(self._forward, name))
            self._hooks.append(owners[0].register_forward_hook(hook, with_kwargs=True))

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def keep(self, name: str, pair: Pair) -> None:
        """Record the factors of one call of a layer, when the backward pass goes through it."""
        self._pairs[name].append(pair)

    def take(self, name: str, gradient: torch.Tensor, iteration: int, *, factor: float = 1.0) -> None:
        """Store the factors of a variable's complete gradient, which was scaled, where their transfer reads them."""
        pairs = self._pairs[name]
        if len(pairs) != 1:
            found = f"{len(pairs)} calls of its layer" if pairs else "no call of its layer"
            raise OperationError(f"the gradient of {name} came from {found} {_INSTEAD}")
        pair = pairs.pop()
        if factor != 1.0:
            pair = pair._replace(outputs=pair.outputs * factor if factor else torch.zeros_like(pair.outputs))
        self._check(name, pair, gradient)
        if not len(pair.outputs):
            # The batch had no examples: the layer was used, and its gradient is zero.
            pair = _of_rows(1, gradient)
        for part, region in self._regions[name]:
            self._memory.put(region, iteration, cut_factors(pair, part))

    def take_nothing(self, name: str, iteration: int) -> None:
        """Store empty factors, because this rank has no gradient of a variable."""
        self._pairs[name].clear()
        pair = _of_rows(0, self._memory.parameter(name).detach())
        for part, region in self._regions[name]:
            self._memory.put(region, iteration, cut_factors(pair, part))

    def forget(self, name: str) -> None:
        """Drop the factors of a gradient that was accumulated and is not synchronised by itself."""
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
        if not self._product.fits(name, pair, gradient):
            raise OperationError(
                f"the gradient of {name} is not the product of what its layer's one call got and gave: the weight is "
                f"used in another way too, or its gradient was not set to zero before {_INSTEAD}"
            )
