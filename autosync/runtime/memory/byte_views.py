"""Views the numbers of tensors as bytes."""

from __future__ import annotations

import torch


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a dense tensor as one row of bytes, in the tensor's own memory if it is contiguous.

    To torch, a tensor of one element is contiguous with any strides, such as the one row of a column; yet it views no
    strides but 1 as bytes.
    """
    flat = tensor.detach().contiguous()
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)
