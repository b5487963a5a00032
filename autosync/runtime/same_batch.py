"""What the ranks of a trainer tell each other at the end of a step: numbers to be summed, and a mark of the batch.

Every rank gives `step` the same global batch. Where one does not, for example because its loader draws another order in
a later epoch, training goes wrong without a sign. So each rank sends a mark of its batch with the loss.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import torch

from autosync.errors import OperationError
from autosync.runtime.memory.byte_views import as_bytes
from autosync.runtime.wire.links import Links
from autosync.runtime.wire.numbers import numbers_of_all
from autosync.specs.profile.tape import tensors_of

_MOST_ELEMENTS = 4096
"""So many elements of a tensor are marked, evenly spaced, so that a mark takes no longer for a large batch."""


def batch_mark(batch: Any) -> int:
    """Return a number that is the same for equal batches, and hardly ever for different ones."""
    mark = 0
    for tensor in tensors_of(batch):
        mark = zlib.crc32(f"{tuple(tensor.shape)} {tensor.dtype}".encode(), mark)
        if tensor.layout == torch.strided:
            flat = tensor.detach().reshape(-1)
            some = flat[:: max(1, math.ceil(len(flat) / _MOST_ELEMENTS))].contiguous().cpu()
            mark = zlib.crc32(as_bytes(some).numpy().tobytes(), mark)
    return mark


def sums_of_step(links: Links, num_workers: int, parts: Sequence[float], mark: int) -> list[float]:
    """Return the sum of each of these numbers over all workers; refuse a step whose batches have different marks."""
    rows = numbers_of_all(links, num_workers, [*parts, mark])
    others = [rank for rank, row in enumerate(rows) if row[-1] != rows[0][-1]]
    if others:
        raise OperationError(
            f"rank {', '.join(map(str, others))} trained this step on another batch than rank 0, so the weights are "
            "wrong from this step on (each rank gives step() the whole global batch: the same examples, in one order)"
        )
    return [math.fsum(column) for column in zip(*(row[:-1] for row in rows), strict=True)]
