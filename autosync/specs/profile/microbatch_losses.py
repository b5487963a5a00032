"""Checks whether microbatches train the model that their whole batch trains.

Stages divide a batch into microbatches and average their losses. That is the loss of the batch only if each example
counts by itself and all weigh the same. A layer that computes over its batch, a sum, or a mean over unmasked words
breaks it, in silence. So the loss of some microbatches together is compared with the mean of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from autosync.specs.examples import examples_of, join_batches, num_examples
from autosync.specs.task import Task
from autosync.specs.task_file import task_code

_MOST_ERROR = 0.05
_NUM_ROUNDINGS = 4096
"""Losses and gradients may differ by so many roundings: microbatches and stages add them up in another order."""
_NUM_COMPARED = 4
"""So many microbatches are compared: two alone may have equally many unmasked words by chance."""
_MOST_EXAMPLES = 2
"""Two examples, because a loss over several is a mean in another way than that of one. More would only take longer."""


def is_near(one: torch.Tensor, other: torch.Tensor, scale: float) -> bool:
    """Whether two tensors differ by roundings of numbers as large as `scale`."""
    tolerance = min(_MOST_ERROR, _NUM_ROUNDINGS * torch.finfo(other.dtype).eps)
    error = float((one.double() - other.double()).norm())
    return error <= tolerance * scale or (error == 0.0 and scale == 0.0)


def small_microbatches(batch: Any, draw: Callable[[], Any]) -> list[Any]:
    """Return some small microbatches of a divisible batch, with equally many examples.

    If the batch has a single example, `draw` returns further ones.
    """
    whole = num_examples(batch)
    if whole < 2:
        return [batch, *(draw() for _ in range(_NUM_COMPARED - 1))]
    count = min(_MOST_EXAMPLES, whole // 2)
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
                    f"{float(apart.mean()):g}: the loss or a layer mixes examples or weighs them unevenly (BatchNorm, "
                    "sums, masked means, negatives from the batch), so microbatches would train another model"
                )
    return ""


class _NoDropout(TorchFunctionMode):
    """While it is on, dropout lets all values through: that of modules, of functions and of attention."""

    def __torch_function__(
        self, func: Any, _: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func in _DROPOUTS:
            return args[0] if args else given["input"]
        if func is functional.scaled_dot_product_attention:
            # The fifth argument is the probability.
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            else:
                given["dropout_p"] = 0.0
        return func(*args, **given)


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


def _loss(task: Task, model: nn.Module, batch: Any) -> torch.Tensor:
    with task_code(task, "loss(model, batch)", task.loss):
        return task.loss(model, batch).detach()
