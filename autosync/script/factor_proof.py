"""Proves in the observed steps which gradients are the products of two factors.

Sufficient factors are for a layer that is called once in each step, and nothing else may use its weight. Calls and the
graph of the outputs do not show all that a script does: it may add the weights to the loss, run two forward passes
before one backward pass, or change gradients by hooks. Under such a strategy its backward pass would then fail. So a
weight has factors only if the product of what its layer got and gave was its gradient.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from autosync.runtime.local.factors import Pair, ProductCheck
from autosync.runtime.session.hooks import Hook
from autosync.script.gradient_uses import unwatched
from autosync.specs.model import ModelSpec
from autosync.specs.profile.recorder import ModelStructure

_MOST_NAMED = 3


class _QuietHook(Hook):
    """A hook that does nothing in compiled code, and leaves it whole. Nothing is proven of such layers."""

    __slots__ = ()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return None
        return self._function(*arguments, **options)


class FactorProof:
    """Compares the gradients of linear layers' weights with the products of their factors.

    While `checks_products` is false, it only counts the calls of each layer, because steps are measured.
    """

    def __init__(self, structure: ModelStructure) -> None:
        self.checks_products = True
        self._layers = dict(_layers_of(structure))
        self._product = ProductCheck()
        # The factors of the calls that a backward pass has gone through, without values if they are only counted.
        self._pairs: dict[str, list[Pair | None]] = {name: [] for name in self._layers}
        self._proven: set[str] = set()
        self._disproved: set[str] = set()
        self._is_attached = False

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Keep the hooks in the layers during the block."""
        handles: list[Any] = []
        for name, layer in self._layers.items():
            handles.append(layer.register_forward_hook(_QuietHook(self._forward_hook(name)), with_kwargs=True))
            ready: Any = layer.weight.register_post_accumulate_grad_hook
            handles.append(ready(self._ready_hook(name)))
        self._is_attached = True
        try:
            yield
        finally:
            self._is_attached = False
            for pairs in self._pairs.values():
                pairs.clear()
            for handle in handles:
                handle.remove()

    def _forward_hook(self, name: str) -> Callable[..., None]:
        weight = self._layers[name].weight

        def hook(_: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any], output: Any) -> None:
            if not self._is_attached or not torch.is_grad_enabled() or not output.requires_grad:
                return
            inputs = arguments[0] if arguments else named["input"]
            if inputs.dtype != weight.dtype or output.dtype != weight.dtype:
                self._disproved.add(name)
            kept = inputs.detach() if self.checks_products and name not in self._disproved else None
            output.register_hook(lambda gradient: self._pairs[name].append(_pair(gradient, kept)))

        return hook

    def _ready_hook(self, name: str) -> Callable[[torch.Tensor], None]:
        def hook(weight: torch.Tensor) -> None:
            pairs, self._pairs[name] = self._pairs[name], []
            if name in self._disproved:
                return
            if len(pairs) != 1 or weight.grad is None:
                self._disproved.add(name)
            elif (pair := pairs[0]) is not None:
                fits = self._product.fits(name, pair, unwatched(weight.grad))
                (self._proven if fits else self._disproved).add(name)

        return hook

    def applied(self, model: ModelSpec, *, adds: bool) -> ModelSpec:
        """Return the model spec with factors where they are proven. `adds`: the script adds to earlier gradients."""
        proven = set() if adds else self._proven - self._disproved
        # A hook that has changed nothing so far may do so later.
        proven -= {name for name, layer in self._layers.items() if layer.weight._backward_hooks}  # noqa: SLF001 - torch has no other way to ask
        without = [one.name for one in model.variables if one.kind == "linear" and one.name not in proven]
        if not without:
            return model
        variables = tuple(
            replace(one, kind="dense", factor_rows=None) if one.name in set(without) else one for one in model.variables
        )
        names = f"{', '.join(without[:_MOST_NAMED])}{' …' if len(without) > _MOST_NAMED else ''}"
        note = f"{len(without)} gradients are not proven to be products of factors, and taken as dense: {names}"
        return replace(model, variables=variables, notes=(*model.notes, note))


def _layers_of(structure: ModelStructure) -> Iterator[tuple[str, nn.Linear]]:
    """Yield the linear layers whose weights are trained, by the weights' names."""
    for name, parameter in structure.parameters.items():
        layer = structure.modules[structure.owners[name]]
        is_linear = isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward
        # A weight that other code computes (a parametrization) is no parameter, and to ask for it would run that code.
        own = layer._parameters.get("weight") if is_linear else None  # noqa: SLF001 - see above
        if isinstance(layer, nn.Linear) and own is parameter and parameter.requires_grad and parameter.numel():
            yield name, layer


def _pair(gradient: torch.Tensor, inputs: torch.Tensor | None) -> Pair | None:
    if inputs is None:
        return None
    outputs = gradient.detach()
    return Pair(outputs.reshape(-1, outputs.shape[-1]), inputs.reshape(-1, inputs.shape[-1]))
