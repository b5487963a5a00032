"""Whether the microbatches of a step weigh the same in a loss that leaves out some of its targets.

Such a loss is the mean over the targets that are not ignored, or that of weighted classes. Microbatches have the mean
of the global batch only if each has as many of them. A comparison of gradients finds large differences, and this
count finds all. A rank has the whole global batch, so it counts the targets of all microbatches by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_unflatten

from autosync.specs.profile.tape import Slot, Tape, TapeCall

_LOSSES = (functional.cross_entropy, functional.nll_loss)
_NAMES = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction")
_MOST_CALLS = 32
"""Targets that need more calls are not counted: a network computes them."""


class CountedTargets:
    """Computes the targets of a loss from the tensors of a microbatch, and counts those that are not ignored."""

    def __init__(
        self, tape: Tape, calls: Sequence[TapeCall], target: int, *, ignored: int, weights: torch.Tensor | None
    ) -> None:
        self._batch = tape.batch
        self._calls = calls
        self._target = target
        self._ignored = ignored
        self._weights = weights

    @torch.no_grad()
    def why_uneven(self, microbatches: Sequence[Sequence[torch.Tensor]]) -> str:
        """Return why microbatches, as their tensors, weigh unevenly; empty if they do not."""
        counts = [self._weight(one) for one in microbatches]
        if math.isclose(min(counts), max(counts), rel_tol=1e-9):
            return ""
        return (
            f"the loss is a mean over {min(counts):g} to {max(counts):g} targets of each microbatch, by its "
            "ignore_index and weights of classes: microbatches weigh unevenly and would train another model"
        )

    def _weight(self, batch: Sequence[torch.Tensor]) -> float:
        values: dict[int, torch.Tensor] = dict(zip(self._batch, batch, strict=True))
        for call in self._calls:
            values.update(call.make(values))
        target = values[self._target]
        kept = target[target != self._ignored]
        return float(len(kept) if self._weights is None else self._weights.double()[kept].sum())


def counted_targets(tape: Tape) -> CountedTargets | None:
    """Return the targets of a recorded loss if it is a mean over classes, and the batch alone tells them."""
    place = next((n for n, one in enumerate(tape.calls) if tape.loss in [value for _, value in one.results]), -1)
    if place < 0 or tape.calls[place].function not in _LOSSES:
        return None
    args, kwargs = tree_unflatten(list(tape.calls[place].leaves), tape.calls[place].form)
    named: Mapping[str, Any] = {**dict(zip(_NAMES, args, strict=False)), **kwargs}
    target, weights = named["target"], named.get("weight")
    is_mean = named.get("reduction", "mean") == "mean" and named.get("size_average") is named.get("reduce") is None
    # Targets of another type are probabilities, of which none is ignored.
    is_class = isinstance(target, Slot) and not tape.values[target.value].dtype.is_floating_point
    calls = _making(tape.calls[:place], target.value) if is_mean and is_class else None
    if calls is None or isinstance(weights, Slot):
        return None
    return CountedTargets(tape, calls, target.value, ignored=named.get("ignore_index", -100), weights=weights)


def _making(calls: Sequence[TapeCall], wanted: int) -> list[TapeCall] | None:
    """Return the calls that make a value from the batch; None if they change values or are more than a few."""
    needed, found = {wanted}, list[TapeCall]()
    for call in reversed(calls):
        if not needed.isdisjoint(call.mutates):
            return None
        if not needed.isdisjoint(value for _, value in call.results):
            needed.update(call.inputs)
            found.insert(0, call)
    uses_layers = any(isinstance(leaf, nn.Parameter) for call in found for leaf in call.leaves)
    return None if uses_layers or len(found) > _MOST_CALLS else found
