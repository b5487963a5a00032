"""One product for the gradient of a weight, instead of one for each group of vertices.

A vertex function applies the same linear layers in every group, so autograd computes and adds up a whole weight
gradient for each group. Here the layers' inputs and output gradients are kept until the first group's backward pass is
done, and multiplied once. This is worth it for wide states and many small groups.
"""

# torch's `save_for_backward`, `apply` and contexts have no types.
# mypy: disable-error-code="no-untyped-call,misc"

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class LazyLinears(TorchFunctionMode):
    """Inside this block, linear layers postpone the gradients of their weights; everything else is as usual.

    Only `torch.nn.functional.linear` with a parameter as its weight is changed: nn.Linear calls it. Make one for each
    forward pass, and enter it for each group.
    """

    def __init__(self) -> None:
        super().__init__()
        self._layers: dict[tuple[int, int], _LazyLayer] = {}

    def finish(self) -> None:
        """End the forward pass. The backward pass is then the only owner of what is kept, and frees it."""
        for layer in self._layers.values():
            # A layer and its stand-ins' backward would own each other for ever.
            layer.stand_ins = None
        self._layers.clear()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.linear and not kwargs and len(args) in (2, 3):
            found = self._linear(*args)
            if found is not None:
                return found
        return func(*args, **kwargs)

    def _linear(
        self, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """Return the result of a linear layer, or None if torch has to compute it."""
        postpones = isinstance(weight, torch.nn.Parameter) and weight.requires_grad and torch.is_grad_enabled()
        if not postpones or not _is_plain(rows, weight, bias):
            return None
        key = (id(weight), id(bias))
        layer = self._layers.get(key)
        if layer is None:
            layer = self._layers[key] = _LazyLayer(weight, bias)
        assert layer.stand_ins is not None, "the forward pass has not ended"
        result: torch.Tensor = _Product.apply(rows, *layer.stand_ins, layer)
        return result


def _is_plain(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Whether the layer has a batch of rows in the weight's own dtype, and a trained bias or none."""
    has_rows = rows.dim() >= 2 and rows.dtype == weight.dtype and weight.dim() == 2
    has_bias = bias is None or (isinstance(bias, torch.nn.Parameter) and bias.requires_grad)
    return has_rows and has_bias and not torch.is_autocast_enabled(weight.device.type)


class _LazyLayer:
    """The inputs and output gradients of one layer in one pass, and stand-ins for its weight and bias."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.inputs: list[torch.Tensor] = []
        self.gradients: list[torch.Tensor] = []
        # The parameters' identities are keys, so they must live as long as this does.
        self.parameters = weight, bias
        # Their backward runs after that of every use, although no use gives them a gradient.
        self.stand_ins: tuple[torch.Tensor, torch.Tensor | None] | None = _StandIns.apply(weight, bias, self)
        self._backward_pass = -1

    def add(self, inputs: torch.Tensor, gradients: torch.Tensor) -> None:
        """Keep what one use adds to the gradients in this backward pass."""
        number = torch._C._current_graph_task_id()  # noqa: SLF001 - torch has no public name for it
        if number != self._backward_pass:
            # An earlier pass that asked for other gradients only has left something here.
            self._backward_pass, self.inputs, self.gradients = number, [], []
        self.inputs.append(inputs.detach().reshape(-1, inputs.shape[-1]))
        self.gradients.append(gradients.reshape(-1, gradients.shape[-1]))

    def take(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return all inputs and output gradients as two matrices, and forget them; None if there are none."""
        if not self.inputs:
            return None
        taken = torch.cat(self.inputs), torch.cat(self.gradients)
        self.inputs, self.gradients = [], []
        return taken


class _StandIns(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight: torch.Tensor, bias: torch.Tensor | None, layer: _LazyLayer
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        ctx.layer = layer
        ctx.set_materialize_grads(False)
        return weight.view_as(weight), None if bias is None else bias.view_as(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _weight: torch.Tensor | None, _bias: torch.Tensor | None) -> Any:
        taken = ctx.layer.take()
        if taken is None:
            return None, None, None
        inputs, gradients = taken
        weight = gradients.t() @ inputs if ctx.needs_input_grad[0] else None
        bias = gradients.sum(0) if ctx.needs_input_grad[1] else None
        return weight, bias, None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, layer: _LazyLayer
    ) -> torch.Tensor:
        ctx.layer = layer
        ctx.save_for_backward(rows, weight)
        return functional.linear(rows, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        rows, weight = ctx.saved_tensors
        ctx.layer.add(rows, gradient)
        return gradient @ weight if ctx.needs_input_grad[0] else None, None, None, None
