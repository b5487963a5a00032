"""Checks whether microbatches train the model that their whole batch trains.

Stages divide a batch into microbatches and average their losses. That is the loss of the batch only if each example
counts by itself and all weigh the same. A layer that computes over its batch, a sum, or a mean over unmasked words
breaks it, in silence. So the loss of some microbatches together is compared with the mean of theirs. A model that has
learned nothing gives all words about the same loss, which hides how it weighs them. So the gradients of some examples
are compared too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from autosync.specs.cuts import NUM_COMPARED
from autosync.specs.examples import examples_of, join_batches, num_examples
from autosync.specs.task import Task
from autosync.specs.task_file import task_code

_MOST_ERROR = 0.05
_NUM_ROUNDINGS = 4096
"""Losses and gradients may differ by so many roundings: microbatches and stages add them up in another order."""
_NUM_COMPARED = 4
"""So many microbatches are compared: two alone may have equally many unmasked words by chance."""
_MOST_GRADIENT_ERROR = 1 / 64
"""The gradients of examples together may differ by this part of theirs, and by more if their type is coarse.

Sums in another order may move a number past the kink of a ReLU, which changes a gradient by more than a rounding.
"""
_NUM_GRADIENT_ROUNDINGS = 256
"""Gradients of a model that has learned may still differ by so many roundings of its largest ones."""
_PIECE = 2**20
"""The elements of large tensors that are compared at a time."""
_UNEVEN = (
    "the loss or a layer mixes examples or weighs them unevenly (BatchNorm, sums, masked means, negatives from the "
    "batch), so microbatches would train another model"
)


def is_near(one: torch.Tensor, other: torch.Tensor, scale: float) -> bool:
    """Whether two tensors differ by roundings of numbers as large as `scale`."""
    tolerance = min(_MOST_ERROR, _NUM_ROUNDINGS * torch.finfo(other.dtype).eps)
    pairs = zip(_pieces(one), _pieces(other), strict=True)
    error = math.hypot(*(float((first.double() - second.double()).norm()) for first, second in pairs))
    return error <= tolerance * scale or (error == 0.0 and scale == 0.0)


def norm_of(values: torch.Tensor) -> float:
    """Return the norm of a dense tensor, computed in double precision."""
    return math.hypot(*(float(piece.double().norm()) for piece in _pieces(values)))


def _pieces(values: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return a tensor in pieces, so that no whole copy in double precision is made."""
    flat = values.reshape(-1)
    return torch.split(torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat, _PIECE)


def small_microbatches(batch: Any, draw: Callable[[], Any]) -> list[Any]:
    """Return some small microbatches of a divisible batch, with equally many examples.

    If the batch has a single example, `draw` returns further ones.
    """
    whole = num_examples(batch)
    if whole < 2:
        return [batch, *(draw() for _ in range(_NUM_COMPARED - 1))]
    count = min(NUM_COMPARED, whole // 2)
    ends = range(count, min(whole, count * _NUM_COMPARED) + 1, count)
    return [examples_of(batch, end - count, end) for end in ends]


def why_changes_mix(changed: Sequence[str]) -> str:
    """Return why a forward pass that changes these parameters or buffers mixes examples; empty if it changes none."""
    if not changed:
        return ""
    return (
        f"a forward pass changes {changed[0]}: layers such as BatchNorm compute over their own microbatch, so stages "
        "would train another model"
    )


@torch.no_grad()
def why_losses_mix(task: Task, model: nn.Module, microbatches: Sequence[Any]) -> str:
    """Return why the loss of several microbatches is not the mean of theirs; empty if it is.

    Dropout is left out. Other random numbers would hide such a loss, so they are a reason too.
    """
    last = len(microbatches) - 1
    chosen = [
        microbatches[place] for place in sorted({round(last * n / (_NUM_COMPARED - 1)) for n in range(_NUM_COMPARED)})
    ]
    with _NoDropout():
        losses = [_loss(task, model, one) for one in chosen]
        again = _loss(task, model, chosen[0])
        if not torch.equal(losses[0], again):
            return (
                f"one microbatch has the loss {float(losses[0]):g} and then {float(again):g}: the forward pass draws "
                "random numbers besides dropout, so whether microbatches train the same model cannot be checked"
            )
        for count in sorted({2, len(chosen)}):
            together = _loss(task, model, join_batches(chosen[:count]))
            apart = torch.stack(losses[:count])
            if not is_near(together, apart.mean(), float(apart.abs().sum())):
                return (
                    f"{count} microbatches together have the loss {float(together):g}, and the mean of theirs is "
                    f"{float(apart.mean()):g}: {_UNEVEN}"
                )
    if len(chosen) < 2:
        return ""
    return GradientComparison(task, model, dict(model.named_parameters())).why_mixed([chosen[0], chosen[-1]])


class GradientComparison:
    """Compares the gradients of a few examples of several microbatches together with the mean of theirs.

    It looks at some of a model's parameters, and leaves their own gradients alone. Of each it remembers the largest
    gradient: when a model has learned, gradients are small, and what roundings of larger numbers leave is not. What it
    remembers fades by half in each comparison, down to what roundings leave, or it would see nothing later.
    """

    def __init__(self, task: Task, model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
        self._task = task
        self._model = model
        self._parameters = {name: one for name, one in parameters.items() if one.requires_grad}
        self._largest = dict.fromkeys(self._parameters, 0.0)
        self._largest_ever = dict(self._largest)
        coarsest = max((torch.finfo(one.dtype).eps for one in self._parameters.values()), default=0.0)
        self._tolerance = max(_MOST_GRADIENT_ERROR, 64 * coarsest)
        self._least_share = min(1.0, _NUM_GRADIENT_ROUNDINGS * coarsest / self._tolerance)

    def why_mixed(self, microbatches: Sequence[Any]) -> str:
        """Return why the gradients of the microbatches are not the mean of theirs; empty if they are."""
        if not self._parameters:
            return ""
        pieces = [examples_of(one, 0, min(num_examples(one), NUM_COMPARED)) for one in microbatches]
        rest = self._gradients(join_batches(pieces))
        if not all(math.isfinite(_norm(one)) for one in rest.values()):
            # Training has diverged, which its losses show.
            return ""
        self._fade()
        for piece in pieces:
            for name, gradient in self._gradients(piece).items():
                self._note(name, _norm(gradient))
                rest[name] = _less(rest.get(name), gradient / len(pieces))
        floor = math.hypot(*self._largest.values()) / 64
        for name, difference in rest.items():
            if not _norm(difference) <= self._tolerance * max(self._largest[name], floor):
                return (
                    f"the gradient of {name} from {len(pieces)} microbatches together is not the mean of theirs: "
                    f"{_UNEVEN}"
                )
        return ""

    def _fade(self) -> None:
        for name, ever in self._largest_ever.items():
            self._largest[name] = max(self._largest[name] / 2, self._least_share * ever)

    def _note(self, name: str, norm: float) -> None:
        self._largest[name] = max(self._largest[name], norm)
        self._largest_ever[name] = max(self._largest_ever[name], norm)

    def _gradients(self, batch: Any) -> dict[str, torch.Tensor]:
        with torch.enable_grad(), task_code(self._task, "loss(model, batch)", self._task.loss), _NoDropout():
            loss = self._task.loss(self._model, batch).sum()
        if not loss.requires_grad:
            return {}
        with task_code(self._task, "the backward pass", self._task.loss):
            parameters = list(self._parameters.values())
            found: Sequence[torch.Tensor | None] = torch.autograd.grad(loss, parameters, allow_unused=True)
        return {name: one for name, one in zip(self._parameters, found, strict=True) if one is not None}


def _norm(gradient: torch.Tensor) -> float:
    return norm_of(gradient.coalesce().values() if gradient.is_sparse else gradient)


def _less(one: torch.Tensor | None, other: torch.Tensor) -> torch.Tensor:
    if one is None:
        return -other
    if one.is_sparse != other.is_sparse:
        one, other = one.to_dense(), other.to_dense()
    return one - other


class _NoDropout(TorchFunctionMode):
    """While it is on, dropout lets all values through: that of modules, functions, attention and recurrent layers."""

    def __torch_function__(
        self, func: Any, _: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func in _DROPOUTS:
            return args[0] if args else given["input"]
        if func in _ATTENTION:
            return _without_dropout(func, args, given, "dropout_p", _ATTENTION[func])
        if func in _RECURRENT:
            # Whether there are biases, the number of layers, and the probability.
            has_biases = next((place for place, one in enumerate(args) if isinstance(one, bool)), len(args))
            return _without_dropout(func, args, given, "dropout", has_biases + 2)
        return func(*args, **given)


def _without_dropout(func: Any, args: tuple[Any, ...], given: dict[str, Any], name: str, place: int) -> Any:
    """Call a function with 0 for its probability, which has this name and this place among the arguments."""
    if place < len(args):
        return func(*args[:place], 0.0, *args[place + 1 :], **given)
    return func(*args, **{**given, name: 0.0})


_DROPOUTS = {
    functional.dropout,
    functional.dropout1d,
    functional.dropout2d,
    functional.dropout3d,
    functional.alpha_dropout,
    functional.feature_alpha_dropout,
    torch.dropout,
    torch.feature_dropout,
    torch.alpha_dropout,
    torch.feature_alpha_dropout,
}
_ATTENTION = {functional.scaled_dot_product_attention: 4, functional.multi_head_attention_forward: 10}
"""Functions that drop attention weights, and the place of the probability among their arguments."""
_RECURRENT = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}
"""Functions that drop what one recurrent layer gives to the next."""


def _loss(task: Task, model: nn.Module, batch: Any) -> torch.Tensor:
    with task_code(task, "loss(model, batch)", task.loss):
        return task.loss(model, batch).detach()
