"""Gradients whose memory is not theirs alone.

Where a parameter has no gradient yet, torch makes an arriving one its gradient without copying it, if no other tensor
object is the arriving one. It doesn't look at memory (pytorch#34082), so `p.grad` may share it with another parameter's
gradient (`a.view(-1) + b.view(-1)`), or with a gradient that backward still passes on (`x + p.unsqueeze(0)`). Under
torch this is harmless in one backward pass, which only reads such gradients. But the engine scales and sums gradients
in place while backward goes on. And a second pass adds to gradients in place: torch adds to both that share memory, so
each gets the other's too. Here each gets its own.
"""

from __future__ import annotations

from typing import Any

import torch

_HELD_BY_VIEW = 2
"""How many hold a base that nothing but one view of it refers to: the view, and the Python object made to ask."""


def take_apart(parameter: torch.Tensor, brought: torch.Tensor) -> None:
    """Give a parameter's gradient memory of its own if anything else holds its memory.

    `brought` is the gradient that autograd has just accumulated, and still holds. This is called for every gradient, so
    it copies nothing where it need not: the gradient of a linear layer's weight, for one, is the only view of its base.
    """
    gradient = parameter.grad
    if gradient is None or not (_is_plain(gradient) and _is_plain(brought)):
        return
    if gradient.data_ptr() != brought.data_ptr():
        # torch has copied the gradient, or added it to the one that was there.
        return
    storage = gradient.untyped_storage()
    # The Python object of the storage, the gradient and what was brought hold the memory.
    num_known = 3
    base: Any = brought._base  # noqa: SLF001 - torch has no other way to ask
    if base is not None and base._use_count() == _HELD_BY_VIEW:  # noqa: SLF001 - the same
        num_known += 1
    if torch._C._storage_Use_Count(storage._cdata) > num_known:  # noqa: SLF001 - the same
        parameter.grad = gradient.clone()


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided
