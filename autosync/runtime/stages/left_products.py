"""The gradients of weights that a backward pass leaves for later: products of linear layers.

The stage before waits for the gradients of activations, and nobody waits for those of weights. So a linear layer of a
split backward pass computes only the first, and keeps what the second are made of. Afterwards autograd accumulates
them, as it would have done at once, so hooks see them.

Only calls of `torch.nn.functional.linear` with a parameter as their weight are left for later. All other gradients come
in the backward pass, as those of norms and embeddings, which take little time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from autosync.specs.profile.linear_calls import linear_arguments
from autosync.specs.profile.tape import TapeCall


class _Layer(NamedTuple):
    """The parameters of a linear layer."""

    weight: nn.Parameter
    bias: nn.Parameter | None


class _Product(NamedTuple):
    """One layer's share: gradient of its outputs (transposed) times its inputs, both as matrices."""

    layer: _Layer
    inputs: torch.Tensor
    gradient: torch.Tensor


class LeftProducts:
    """What the backward pass of a microbatch through a stage has left for later."""

    def __init__(self) -> None:
        self._products: list[_Product] = []

    def add(self, layer: _Layer, inputs: torch.Tensor, gradient: torch.Tensor) -> None:
        """Keep what a layer's gradients are made of."""
        rows = gradient.reshape(-1, gradient.shape[-1])
        self._products.append(_Product(layer, inputs.reshape(-1, inputs.shape[-1]), rows))

    def accumulate(self) -> None:
        """Compute all gradients, and add each to its parameter once, however often the pass used the parameter."""
        products, self._products = self._products, []
        uses: dict[nn.Parameter, list[_Product]] = {}
        for one in products:
            for parameter in one.layer:
                if parameter is not None and parameter.requires_grad:
                    uses.setdefault(parameter, []).append(one)
        for parameter, of_parameter in uses.items():
            first, *others = (_gradient(one, parameter) for one in of_parameter)
            torch.autograd.backward((parameter,), (sum(others, first),))


def _gradient(one: _Product, parameter: nn.Parameter) -> torch.Tensor:
    return one.gradient.t() @ one.inputs if parameter is one.layer.weight else one.gradient.sum(0)


class _Linear(torch.autograd.Function):
    """A linear layer whose backward pass computes the gradient of its inputs alone.

    Autograd does not see its parameters, or it would call their hooks without a gradient.
    """

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, layer: _Layer, left: LeftProducts) -> torch.Tensor:
        ctx.save_for_backward(inputs, layer.weight)
        ctx.layer, ctx.left = layer, left
        return functional.linear(inputs, layer.weight, layer.bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        inputs, weight = ctx.saved_tensors
        ctx.left.add(ctx.layer, inputs, gradient)
        return gradient @ weight, None, None


def make_leaving(
    call: TapeCall, values: Mapping[int, torch.Tensor], left: LeftProducts
) -> list[tuple[int, torch.Tensor]]:
    """Make a call as `TapeCall.make` does, whose backward pass leaves the gradients of its parameters for later.

    Under autocast the layer computes in another type than that of its weight. Then it leaves nothing, and neither does
    a layer whose inputs get no gradient: nobody waits for its backward pass.
    """
    inputs, weight, bias = linear_arguments(call, values)
    is_cast = inputs.dtype != weight.dtype or torch.is_autocast_enabled(inputs.device.type)
    if is_cast or not inputs.requires_grad:
        return call.make(values)
    result = _Linear.apply(inputs, _Layer(weight, bias), left)  # type: ignore[no-untyped-call]
    return [(value, result) for _, value in call.results]
