"""Writes to ranges of a tensor's elements in row order, even if its memory has another order."""

from __future__ import annotations

import torch


def write_range(target: torch.Tensor, start: int, values: torch.Tensor) -> None:
    """Write flat values to a tensor's elements from `start` on, and touch no others: another thread may use those."""
    stop = start + values.numel()
    if start == stop:
        return
    if target.is_contiguous():
        target.view(-1)[start:stop].copy_(values)
        return
    row_size = target[0].numel()
    first, last = -(-start // row_size), stop // row_size
    if first > last:
        # The whole range lies within one row.
        write_range(target[last], start - last * row_size, values)
        return
    head, tail = first * row_size - start, last * row_size - start
    target[first:last].copy_(values[head:tail].view(target[first:last].shape))
    if head:
        write_range(target[first - 1], row_size - head, values[:head])
    if tail < values.numel():
        write_range(target[last], 0, values[tail:])
