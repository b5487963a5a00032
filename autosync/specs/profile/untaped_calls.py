"""Calls that a tape cannot make again: it sees no result of them, or tensors that are not what they seem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

_HOOKING = frozenset(
    {
        torch.Tensor.register_hook,
        torch.Tensor.register_post_accumulate_grad_hook,
        torch.Tensor.retain_grad,
        # Code takes a node of autograd to put a hook on it.
        torch.Tensor.grad_fn.__get__,  # type: ignore[union-attr] # a property of a class in C
    }
)
_REPLACING = frozenset({torch.Tensor.data.__set__})  # type: ignore[attr-defined] # as above
_TURNING = frozenset(
    {
        torch.Tensor.requires_grad.__set__,  # type: ignore[attr-defined] # as above
        torch.Tensor.requires_grad_,
        torch.Tensor.detach_,
        torch.detach_,
    }
)


def why_lost(func: Callable[..., Any], *, turns_gradients: bool) -> str:
    """Return what a call does that a recorded pass would not repeat; empty if there is nothing.

    `turns_gradients` says whether the call has changed if a tensor needs a gradient.
    """
    if func in _HOOKING:
        return "puts a hook on a gradient, as by register_hook()"
    if func in _REPLACING:
        return "puts other values into a tensor, as by .data ="
    if func in _TURNING and turns_gradients:
        return "changes whether a tensor needs a gradient, as by requires_grad_()"
    return ""


def why_unseen(tensors: Sequence[torch.Tensor]) -> str:
    """Return why calls with these tensors cannot be recorded; empty if they can."""
    if any(torch._C._functorch.is_functorch_wrapped_tensor(one) for one in tensors):  # noqa: SLF001 - torch has no public name for it
        return "calls a function that torch.vmap or torch.func has transformed"
    if any(one.is_inference() for one in tensors):
        return "computes with tensors of torch.inference_mode(), whose changes are not seen"
    return ""


_FORMS = frozenset(
    {"empty_like", "full_like", "ones_like", "zeros_like"}
    | {"new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros"}
)
_FORMS_OF_OTHERS = frozenset({"expand_as", "reshape_as", "to", "type_as", "view_as"})


def takes_values(func: Callable[..., Any], place: int) -> bool:
    """Whether the result of a call depends on the values of the tensor at this place, and not on its form alone."""
    name = getattr(func, "__name__", "")
    return name not in _FORMS and (name not in _FORMS_OF_OTHERS or place == 0)


def saving_hooks() -> object:
    """Return the hooks under which autograd keeps tensors here, as those of activation checkpointing."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False)  # noqa: FBT003, SLF001 - torch has no public name for it
