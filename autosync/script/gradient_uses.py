"""What a script does with gradients between the backward pass and the next one.

Where the engine updates, a script that reads or changes gradients waits for all of them, or is refused. What a task
declares costs no wait: clipping the norm of all gradients, and scaling the loss. A script declares nothing. Therefore
its gradients in its first steps, which stock DDP synchronises, are of a class that notes what is done to them, and does
it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

_HARMLESS = frozenset(
    {
        *("zero_", "_foreach_zero_", "detach_", "requires_grad_"),
        *("dim", "is_complex", "is_floating_point", "numel", "size", "_has_compatible_shallow_copy_type"),
    }
)
"""What a script may do to any gradient: drop it, set it to zero, or ask for its shape and type."""
_UNSCALES = "_amp_foreach_non_finite_check_and_unscale_"


class WatchedGradient(torch.Tensor):
    """A gradient that notes what is done to it. It shares the memory of the gradient that it stands for."""

    uses: GradientUses

    @classmethod
    def __torch_function__(cls, function: Any, _: Any, arguments: Any = (), options: Any = None) -> Any:
        """Note the use, and do it."""
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - the documented way to define such classes
            result = function(*arguments, **(options or {}))
        name = getattr(function, "__name__", "")
        first = next((one for one in _flat((arguments, options or {})) if isinstance(one, cls)), None)
        # A property such as `data` gives the values away; others, as `shape`, do not.
        gives_nothing = name == "__get__" and not isinstance(result, torch.Tensor)
        if first is not None and name not in _HARMLESS and not gives_nothing:
            first.uses.note(name)
        return result


def _plain(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient without the class that notes its uses."""
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - the documented way to define such classes
        return gradient.detach().coalesce().values() if gradient.is_sparse else gradient.as_subclass(torch.Tensor)


def _flat(values: Any) -> Iterator[Any]:
    for value in values.values() if isinstance(values, Mapping) else values:
        if isinstance(value, list | tuple | Mapping):
            yield from _flat(value)
        else:
            yield value


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippingCall:
    """A call of `clip_grad_norm_`. `is_whole`: of all trained parameters, by the norm of order 2."""

    max_norm: float
    is_whole: bool


class GradientUses:
    """Watches the gradients of some parameters, and collects what is done to them."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self._watched: dict[int, tuple[torch.nn.Parameter, torch.Tensor, WatchedGradient]] = {}
        self._clips = False
        self.clippings: set[ClippingCall] = set()
        self.scales = False
        self.reads: set[str] = set()
        self.adds = False
        """Whether a backward pass adds to gradients of the step before it."""

    # The gradients.

    def watch(self) -> None:
        """Put watched gradients in the place of those that are there."""
        for parameter in self._parameters:
            gradient = parameter.grad
            if gradient is not None and not isinstance(gradient, WatchedGradient) and not gradient.is_sparse:
                watched = gradient.detach().as_subclass(WatchedGradient)
                watched.uses = self
                parameter.grad = watched
                self._watched[id(parameter)] = parameter, gradient, watched

    def lift(self) -> None:
        """Put the gradients themselves back."""
        for parameter, gradient, watched in self._watched.values():
            if parameter.grad is watched:
                parameter.grad = gradient
            elif parameter.grad is not None:
                self.reads.add("replaced")
        self._watched.clear()

    def looking_before_backward(self) -> Callable[[torch.Tensor], None]:
        """Return a hook for the outputs of a step's first forward pass.

        It notes whether gradients are there to which the backward pass adds.
        """
        is_done = False

        def look(_: torch.Tensor) -> None:
            nonlocal is_done
            if not is_done:
                is_done = True
                gradients = [one.grad for one in self._parameters if one.grad is not None]
                self.adds = self.adds or any(bool(_plain(one).count_nonzero()) for one in gradients)

        return look

    # What is done to them.

    def note(self, name: str) -> None:
        """A function was called with a gradient."""
        if name == _UNSCALES:
            self.scales = True
        elif not self._clips:
            self.reads.add(name)

    @contextlib.contextmanager
    def clipping(self, given: Iterable[torch.Tensor], max_norm: float, norm_type: float) -> Iterator[None]:
        """Within this block `clip_grad_norm_` works on the gradients of some tensors."""
        ids = {id(one) for one in given}
        ours = [id(one) in ids for one in self._parameters if one.grad is not None]
        if any(ours):
            self.clippings.add(ClippingCall(max_norm=max_norm, is_whole=all(ours) and norm_type == 2.0))
        self._clips = True
        try:
            yield
        finally:
            self._clips = False

    # In sum.

    @property
    def clip_norm(self) -> float | None:
        """The norm to which the script clips all gradients; None if it does not, or not always to the same."""
        if len(self.clippings) != 1:
            return None
        (only,) = self.clippings
        return only.max_norm if only.is_whole and math.isfinite(only.max_norm) and only.max_norm > 0 else None

    def reasons(self) -> Iterator[str]:
        """Yield the reasons why the script needs whole gradients after the backward pass."""
        if self.clippings and self.clip_norm is None:
            yield "it clips some gradients, or not always to the same norm"
        if self.reads:
            yield f"it reads gradients ({', '.join(sorted(self.reads)[:3])})"
        if self.adds:
            yield "its backward pass adds to gradients of the step before"
