"""Calls of linear layers on a recorded pass whose gradients of weights a split backward pass can leave for later."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_unflatten

from autosync.specs.profile.tape import Slot, Tape, TapeCall


class LinearUse(NamedTuple):
    """A use of a linear layer: its segment, the rows of its input matrix, and what its gradients are made of."""

    segment: int
    rows: int
    num_inputs: int
    num_outputs: int
    dtype: torch.dtype
    has_bias: bool


def linear_arguments(call: TapeCall, values: Mapping[int, torch.Tensor]) -> tuple[Any, Any, Any]:
    """Return the inputs, the weight and the bias of a call of a linear layer."""
    given = [values.get(leaf.value, leaf) if isinstance(leaf, Slot) else leaf for leaf in call.leaves]
    args, kwargs = tree_unflatten(given, call.form)
    named = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
    return named["input"], named["weight"], named.get("bias")


def can_leave(call: TapeCall) -> bool:
    """Whether a recorded call is a linear layer that trains a parameter of the model."""
    if call.function is not functional.linear or not call.with_grad:
        return False
    _, weight, bias = linear_arguments(call, {})
    is_trained = isinstance(weight, nn.Parameter) and weight.requires_grad
    return is_trained and (bias is None or isinstance(bias, nn.Parameter))


def linear_uses(tape: Tape) -> tuple[LinearUse, ...]:
    """Return the calls of a pass that can leave gradients of weights for later."""
    found = []
    for call in filter(can_leave, tape.calls):
        inputs, weight, bias = linear_arguments(call, {})
        value = tape.values[inputs.value] if isinstance(inputs, Slot) else None
        if value is not None and value.has_gradient and value.dtype == weight.dtype and weight.numel():
            rows = math.prod(value.shape[:-1])
            num_outputs, num_inputs = weight.shape
            found.append(LinearUse(call.segment, rows, num_inputs, num_outputs, weight.dtype, bias is not None))
    return tuple(found)
