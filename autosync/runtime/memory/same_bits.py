"""Compares tensors bit by bit: values that are no numbers are equal to themselves, and the two zeros differ."""

from __future__ import annotations

import torch

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""A type of whole numbers for each size of an element."""


def have_same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same shape, type and bits. Their memory layouts may differ."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    bits = _BITS[one.element_size()]
    return torch.equal(one.view(bits), other.view(bits))
