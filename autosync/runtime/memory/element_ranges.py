"""Ranges of a tensor's elements, row by row, where its memory has another order."""

from __future__ import annotations

import torch


def write_range(target: torch.Tensor, start: int, values: torch.Tensor) -> None:
    """Put flat values into a tensor's elements from `start` on, and touch no others: they may be another thread's."""
    stop = start + values.numel()
    if start == stop:
        return
    if target.is_contiguous():
        target.view(-1)[start:stop].copy_(values)
        return
    row_size = target[0].numel()
    first, last = -(-start // row_size), stop // row_size
    if first > last:
        # All of it lies within one row.
        write_range(target[last], start - last * row_size, values)
        return
    head, tail = first * row_size - start, last * row_size - start
    target[first:last].copy_(values[head:tail].view(target[first:last].shape))
    if head:
        write_range(target[first - 1], row_size - head, values[:head])
    if tail < values.numel():
        write_range(target[last], 0, values[tail:])
