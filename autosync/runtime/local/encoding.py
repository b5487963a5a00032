"""Encoding, projecting and decoding on one rank, and the state that codecs keep from step to step.

With error feedback, the part that a codec drops from a gradient is added to the next gradient. The kept `residual`
first becomes the sum of both; this sum is encoded, and then the encoded values are subtracted from it, so that no
further copy is needed. Top-k with momentum uses a velocity instead of the gradient, and clears the elements that were
sent. PowerSGD also keeps the last right factor, because one power iteration in each step is enough only if it starts
near the solution.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from autosync.plan.shards import own_shard
from autosync.plan.types import Local, Plan, StagePass
from autosync.runtime.local.codecs import (
    add_decoded,
    encode,
    load_linear_algebra,
    orthogonal,
    refuse_not_finite,
    sent_positions,
    wide,
)
from autosync.runtime.memory.kept_state import Held, Place
from autosync.runtime.memory.regions import Memory
from autosync.strategy.codecs import Cast, Codec, PowerSGD, TopK
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer


class Encoding:
    """Encodes and decodes on one rank."""

    def __init__(self, plan: Plan, memory: Memory, *, rank: int) -> None:
        self._plan = plan
        self._memory = memory
        self._rank = rank
        self._residuals: dict[tuple[int, ...], torch.Tensor] = {}
        self._velocities: dict[tuple[int, ...], torch.Tensor] = {}
        self._rights: dict[int, torch.Tensor] = {}
        for operation in plan.operations:
            is_mine = any(rank in group for group in operation.groups)
            if is_mine and isinstance(operation, Local) and operation.kind == "encode":
                self._begin(operation)

    def _begin(self, operation: Local) -> None:
        """Start with residuals of zero, and with random right factors that are the same on all ranks."""
        codec, plan = _codec(operation), self._plan
        if codec.error_feedback:
            self._residuals[operation.inputs] = self._zeros(operation)
        if isinstance(codec, TopK) and codec.momentum:
            self._velocities[operation.inputs] = self._zeros(operation)
        if isinstance(codec, PowerSGD):
            load_linear_algebra(self._memory.device)
            for index in operation.inputs:
                part = plan.regions[index].part
                _, columns = self._sides(part)
                drawn = np.random.default_rng(part).standard_normal((columns, codec.rank))
                self._rights[part] = torch.from_numpy(drawn).to(self._memory.device, self._wide(index))

    def _zeros(self, operation: Local) -> torch.Tensor:
        num_elements = sum(self._plan.regions[index].num_elements for index in operation.inputs)
        return torch.zeros(num_elements, dtype=self._wide(operation.inputs[0]), device=self._memory.device)

    def kept(self) -> Iterator[Held]:
        """Yield the state kept of each region. The tensors are not copies."""
        for what, kept in (("residual", self._residuals), ("velocity", self._velocities)):
            for regions, whole in kept.items():
                for index, values in zip(regions, self._split(regions, whole), strict=True):
                    region = self._plan.regions[index]
                    yield Held(what, Place.of(self._plan.parts[region.part], region.start, region.stop), values)

    def kept_factors(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the last right factor of each part (by position). The tensors are not copies."""
        yield from self._rights.items()

    def encode(self, operation: Local, iteration: int) -> None:
        codec, memory = _codec(operation), self._memory
        if isinstance(codec, PowerSGD):
            self._begin_factors(operation, codec, iteration)
            return
        gradients = memory.view(operation.inputs, iteration)
        if isinstance(codec, TopK) and codec.momentum:
            gradients = self._velocities[operation.inputs].mul_(codec.momentum).add_(gradients)
        residual = self._residuals.get(operation.inputs)
        values = gradients.to(self._wide(operation.inputs[0])) if residual is None else residual.add_(gradients)
        if isinstance(codec, Cast):
            encoded = memory.view(operation.outputs, iteration).copy_(values)
            self._refuse_not_finite(encoded, operation.inputs, codec)
            if residual is not None:
                residual.sub_(encoded)
            return
        for index, target, numbers in zip(
            operation.inputs, operation.outputs, self._split(operation.inputs, values), strict=True
        ):
            content = memory.view((target,), iteration)
            encode(codec, numbers, content, name=self._variable(index))
            if residual is not None:
                add_decoded(codec, content, numbers, sign=-1)
        if isinstance(codec, TopK) and codec.momentum:
            self._clear_sent(operation, codec, iteration)

    def _clear_sent(self, operation: Local, codec: TopK, iteration: int) -> None:
        """Clear the velocity where it was sent; otherwise it would push on in an old direction."""
        velocities = self._split(operation.inputs, self._velocities[operation.inputs])
        for target, velocity in zip(operation.outputs, velocities, strict=True):
            content = self._memory.view((target,), iteration)
            velocity.index_fill_(0, sent_positions(codec, content, len(velocity)).long(), 0)

    def decode(self, operation: Local, iteration: int) -> None:
        codec = _codec(operation)
        if isinstance(codec, PowerSGD):
            self._multiply_factors(operation, iteration)
        elif isinstance(codec, Cast):
            mine = self._mine(operation)
            encoded = self._memory.view(operation.inputs, iteration)[mine]
            if len(encoded):
                # Each number was finite, but their sum may not be.
                self._refuse_not_finite(encoded, operation.outputs, codec)
            self._memory.view(operation.outputs, iteration)[mine].copy_(encoded).div_(self._plan.num_workers)
        else:
            self._decode_contributions(operation, codec, iteration)

    def _decode_contributions(self, operation: Local, codec: Codec, iteration: int) -> None:
        """Average the contributions of all members of a gather into the gradients."""
        first = operation.inputs[0]
        contributions = self._memory.get(first, iteration)
        bounds = [self._memory.place(index) for index in operation.inputs]
        begin = bounds[0][0]
        for target, (start, stop) in zip(operation.outputs, bounds, strict=True):
            gradient = self._memory.view((target,), iteration)
            total = gradient if gradient.dtype == self._wide(target) else gradient.to(self._wide(target))
            total.zero_()
            for content in contributions:
                add_decoded(codec, content[start - begin : stop - begin], total)
            total.div_(self._plan.num_workers)
            if total is not gradient:
                gradient.copy_(total)
        self._memory.drop(first, iteration)

    # PowerSGD: multiply the gradient by the last right factor and make the result, the left factor, orthogonal;
    # multiply the transposed gradient by it to get the right factor; the product of both approximates the gradient.

    def _begin_factors(self, operation: Local, codec: PowerSGD, iteration: int) -> None:
        residual = self._residuals.get(operation.inputs)
        if residual is not None:
            self._memory.view(operation.inputs, iteration).add_(residual)
        for index, target in zip(operation.inputs, operation.outputs, strict=True):
            right = self._rights[self._plan.regions[index].part]
            left = self._matrix(index, iteration) @ right
            refuse_not_finite(left, codec, self._variable(index))
            sent = self._memory.view((target,), iteration).copy_(left.view(-1))
            self._refuse_overflow(sent, index, codec)

    def project(self, operation: Local, iteration: int) -> None:
        """Make the summed left factors orthogonal, and compute the right factors from them."""
        count = len(operation.inputs) // 2
        lefts, rights = operation.outputs[:count], operation.outputs[count:]
        for index, left_index, right_index in zip(operation.inputs[:count], lefts, rights, strict=True):
            matrix = self._matrix(index, iteration)
            left = self._memory.view((left_index,), iteration)
            self._refuse_overflow(left, index, _codec(operation))
            basis = orthogonal(left.view(len(matrix), -1).to(matrix.dtype))
            left.copy_(basis.reshape(-1))
            sent = self._memory.view((right_index,), iteration).copy_((matrix.t() @ basis).view(-1))
            self._refuse_overflow(sent, index, _codec(operation))

    def _multiply_factors(self, operation: Local, iteration: int) -> None:
        count = len(operation.outputs)
        residuals = self._residuals.get(operation.outputs)
        kept = [None] * count if residuals is None else self._split(operation.outputs, residuals)
        for position, (target, residual) in enumerate(zip(operation.outputs, kept, strict=True)):
            matrix = self._matrix(target, iteration)
            left = self._memory.view((operation.inputs[position],), iteration).view(len(matrix), -1)
            right = self._memory.view((operation.inputs[count + position],), iteration).view(matrix.shape[1], -1)
            self._refuse_overflow(right, target, _codec(operation))
            mean = self._rights[self._plan.regions[target].part]
            mean.copy_(right).div_(self._plan.num_workers)
            approximation = left.to(mean.dtype) @ mean.t()
            if residual is not None:
                torch.sub(matrix.view(-1), approximation.view(-1), out=residual)
            self._memory.view((target,), iteration).copy_(approximation.view(-1))

    def _refuse_overflow(self, factor: torch.Tensor, region: int, codec: Codec) -> None:
        """Refuse a factor that is too large for its type, or whose sum is: it would make all weights NaN.

        float16 holds no squares of ordinary gradients; the other types hold them all.
        """
        if factor.dtype == torch.float16:
            refuse_not_finite(factor, codec, self._variable(region))

    # Shapes.

    def _sides(self, part: int) -> tuple[int, int]:
        """Return rows and columns of a part seen as a matrix: its first axis against all others."""
        rows = self._plan.parts[part].shape[0]
        return rows, self._plan.parts[part].num_elements // rows

    def _matrix(self, region: int, iteration: int) -> torch.Tensor:
        gradient = self._memory.view((region,), iteration)
        return gradient.view(self._sides(self._plan.regions[region].part)).to(self._wide(region))

    def _split(self, regions: tuple[int, ...], values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sizes = [self._plan.regions[index].num_elements for index in regions]
        return tuple(torch.split(values, sizes))

    def _mine(self, operation: Local) -> slice:
        """Return the range of elements that this rank works on: all of them, or its shard."""
        num_elements = sum(self._plan.regions[index].num_elements for index in operation.outputs)
        return own_shard(operation, self._rank, num_elements)

    def _wide(self, region: int) -> torch.dtype:
        part = self._plan.parts[self._plan.regions[region].part]
        return wide(getattr(torch, part.variable.dtype))

    def _variable(self, region: int) -> str:
        return self._plan.parts[self._plan.regions[region].part].variable.name

    def _refuse_not_finite(self, found: torch.Tensor, regions: tuple[int, ...], codec: Codec) -> None:
        least, most = torch.aminmax(found)
        if torch.isfinite(least) and torch.isfinite(most):
            return
        names = dict.fromkeys(self._variable(index) for index in regions)
        if len(found) == sum(self._plan.regions[index].num_elements for index in regions):
            for index, numbers in zip(regions, self._split(regions, found), strict=True):
                refuse_not_finite(numbers, codec, self._variable(index))
        refuse_not_finite(found, codec, " or ".join(names))


def _codec(operation: Local) -> Codec:
    codec = operation.settings
    assert codec is not None, "what is encoded has a codec"
    assert not isinstance(codec, OuterOptimizer | StagePass), "what is encoded has a codec"
    return codec
