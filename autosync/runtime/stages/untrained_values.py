"""Marks the values that no rank trains: frozen parameters, buffers, and the parameters of teachers.

Every rank has all of them, and a script may change them between two steps, as it does for a target network or a moving
average. It then reads the model. But a rank trains its own stage, and has the others' parameters as they were when the
states were last brought together. So ranks would train on with different values. Each step compares marks of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import torch

from autosync.errors import OperationError
from autosync.runtime.memory.byte_views import as_bytes

_NUM_SAMPLES = 32
"""So many elements of a tensor are marked, evenly spaced: a step of averages changes about all of them."""


@dataclass(slots=True)
class _Watched:
    """A tensor, where its memory is, and some elements in that memory. Torch counts no changes of `.data`."""

    tensor: torch.Tensor
    place: int
    samples: torch.Tensor


class UntrainedValues:
    """Marks values that must be the same on all ranks in every step."""

    def __init__(self, tensors: Iterable[torch.Tensor], trained: Collection[torch.nn.Parameter]) -> None:
        known = {id(one) for one in trained}
        chosen = {id(one): one for one in tensors if id(one) not in known}.values()
        self._watched = [
            _Watched(one, one.data_ptr(), _samples(one))
            for one in chosen
            if one.layout == torch.strided and one.numel() and not one.is_quantized
        ]

    def mark(self) -> int:
        """Return a number that is the same for equal values, and hardly ever for different ones."""
        by_type: dict[torch.dtype, list[torch.Tensor]] = {}
        for one in self._watched:
            if one.tensor.data_ptr() != one.place:
                one.place, one.samples = one.tensor.data_ptr(), _samples(one.tensor)
            by_type.setdefault(one.samples.dtype, []).append(one.samples)
        mark = 0
        for samples in by_type.values():
            mark = zlib.crc32(as_bytes(torch.cat(samples)).numpy().tobytes(), mark)
        return mark


def refuse_different_values(mark: int, marks: float, num_ranks: int) -> None:
    """Refuse a step unless the sum of all ranks' marks is that of equal ones."""
    if marks != num_ranks * mark:
        raise OperationError(
            "a frozen parameter, a buffer or a teacher's parameter differs from rank to rank, so the weights are wrong "
            "from this step on (all ranks make them alike; where a script computes them from layers that other ranks "
            "train, as for a target network or a moving average, it calls trainer.state_dict() on all ranks first)"
        )


def _samples(tensor: torch.Tensor) -> torch.Tensor:
    """Return some elements of a tensor, evenly spaced, in its memory; if it has gaps, those of its longest axis."""
    flat = tensor.detach()
    flat = flat.view(-1) if flat.is_contiguous() else flat
    while flat.ndim > 1:
        flat = flat.select(flat.shape.index(min(flat.shape)), 0)
    return flat[:: -(-len(flat) // _NUM_SAMPLES)]
