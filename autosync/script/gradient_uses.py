"""What a script does with gradients between the backward pass and the next one.

Where the engine updates, a script that reads or changes gradients waits for all of them, or is refused. What a task
declares costs no wait: clipping the norm of all gradients, and scaling the loss. A script declares nothing. Therefore
its gradients in its first steps, which stock DDP synchronises, are of a class that notes what is done to them, and does
it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

_ZEROES = frozenset({"zero_", "_foreach_zero_"})
_HARMLESS = _ZEROES | frozenset(
    {
        *("detach_", "requires_grad_"),
        *("dim", "is_complex", "is_floating_point", "numel", "size", "_has_compatible_shallow_copy_type"),
    }
)
"""What needs no gradient's values: to drop it, to set it to zero, or to ask for its shape and type."""
_COPIES = frozenset({"__deepcopy__", "__reduce_ex__"})
"""What copies or pickles a tensor, and is for classes of torch alone."""
_UNSCALES = "_amp_foreach_non_finite_check_and_unscale_"


class WatchedGradient(torch.Tensor):
    """A gradient that notes what is done to it. It shares the memory of the gradient that it stands for."""

    uses: GradientUses
    is_zeroed: bool = False

    @classmethod
    def __torch_function__(cls, function: Any, _: Any, arguments: Any = (), options: Any = None) -> Any:
        """Note the use, and do it."""
        if getattr(function, "__name__", "") in _COPIES:
            return arguments[0].copied(function, arguments, options or {})
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - the documented way to define such classes
            result = function(*arguments, **(options or {}))
        name = getattr(function, "__name__", "")
        given = [one for one in _flat((arguments, options or {})) if isinstance(one, cls)]
        if name in _ZEROES:
            for one in given:
                one.is_zeroed = True
        # A property such as `data` gives the values away; others, as `shape`, do not.
        gives_nothing = name == "__get__" and not isinstance(result, torch.Tensor)
        if given and name not in _HARMLESS and not gives_nothing:
            given[0].uses.note(name)
        return result

    def copied(self, function: Any, arguments: Any, options: Any) -> Any:
        """Note a copy, and make it of an ordinary tensor."""
        self.uses.note(function.__name__)
        plain = unwatched(self)
        made = function(plain, *arguments[1:], **options)
        for memo in arguments[1:]:
            if isinstance(memo, dict):
                # Its entry is by the `id` of a tensor that no longer exists.
                memo.pop(id(plain), None)
        return made


def unwatched(gradient: torch.Tensor) -> torch.Tensor:
    """Return an ordinary tensor with a gradient's memory, which notes no uses."""
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - the documented way to define such classes
        return gradient.as_subclass(torch.Tensor)


def _plain(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient's values without the class that notes its uses."""
    return gradient.detach().coalesce().values() if gradient.is_sparse else unwatched(gradient)


def _has_other_memory(watched: torch.Tensor, gradient: torch.Tensor) -> bool:
    if watched is gradient:
        return False
    now = unwatched(watched)
    return now.dtype != gradient.dtype or not now.is_set_to(gradient)


def _flat(values: Any) -> Iterator[Any]:
    for value in values.values() if isinstance(values, Mapping) else values:
        if isinstance(value, list | tuple | Mapping):
            yield from _flat(value)
        else:
            yield value


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippingCall:
    """A call of `clip_grad_norm_`. `is_whole`: of all trained parameters and of no others, by the norm of order 2."""

    max_norm: float
    is_whole: bool


class GradientUses:
    """Watches the gradients of some parameters, and collects what is done to them."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self._watched: dict[int, tuple[torch.nn.Parameter, torch.Tensor, torch.Tensor]] = {}
        # By the `id` of their parameters: the gradients of the last backward pass, and which of them were since then
        # dropped or set to zero.
        self._brought: set[int] = set()
        self._dropped: set[int] = set()
        self._zeroed: set[int] = set()
        # Whether the first update since that pass found no gradient at all; None: there was none yet.
        self._are_all_dropped: bool | None = None
        self._clips = False
        self.clippings: set[ClippingCall] = set()
        self.scales = False
        self.reads: set[str] = set()
        self.loses = False
        """Whether some gradients were dropped or set to zero between the backward pass and the update."""

    # The gradients.

    def watch(self) -> None:
        """Put watched gradients in the place of those that are there."""
        for parameter in self._parameters:
            gradient = parameter.grad
            if gradient is None or isinstance(gradient, WatchedGradient):
                continue
            if gradient.is_sparse:
                # Only whether it stays there is seen.
                self._watched[id(parameter)] = parameter, gradient, gradient
                continue
            watched = gradient.detach().as_subclass(WatchedGradient)
            watched.uses = self
            parameter.grad = watched
            self._watched[id(parameter)] = parameter, gradient, watched

    def lift(self) -> None:
        """Put the gradients themselves back."""
        for key, (parameter, gradient, watched) in self._watched.items():
            if isinstance(watched, WatchedGradient) and watched.is_zeroed:
                self._zeroed.add(key)
            if parameter.grad is watched:
                parameter.grad = gradient
                if _has_other_memory(watched, gradient):
                    # The script has put another tensor into it: `p.grad.data = …`.
                    gradient.data = unwatched(watched)
                    self.reads.add("replaced")
            elif parameter.grad is None:
                self._dropped.add(key)
            else:
                self.reads.add("replaced")
        self._watched.clear()

    def are_there(self) -> bool:
        """Whether there are gradients other than zeros."""
        gradients = [one.grad for one in self._parameters if one.grad is not None]
        return any(bool(_plain(one).count_nonzero()) for one in gradients)

    # The order of passes and updates.

    def pass_ends(self) -> None:
        """A backward pass has ended: watch its gradients. What became of those before it does not count."""
        self._watched = {key: one for key, one in self._watched.items() if one[0].grad is one[2]}
        for _, _, watched in self._watched.values():
            if isinstance(watched, WatchedGradient):
                watched.is_zeroed = False
        self._dropped.clear()
        self._zeroed.clear()
        self._are_all_dropped = None
        self.watch()
        self._brought = set(self._watched)

    def update_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """Note whether the gradients of the last pass are still there when an optimizer begins its update.

        If all of them were dropped, there is no update, under any strategy. A gradient that was dropped after the
        update of its own optimizer is not missed by that of another one.
        """
        self.lift()
        lost = self._dropped | self._zeroed
        if self._are_all_dropped is None:
            self._are_all_dropped = not self._zeroed and self._brought == self._dropped
        else:
            lost &= {id(one) for group in optimizer.param_groups for one in group["params"]}
        self.loses |= bool(lost) and not self._are_all_dropped

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
        clipped = {id(one) for one in given if one.grad is not None}
        ours = {id(one) for one in self._parameters if one.grad is not None}
        if clipped & ours:
            self.clippings.add(ClippingCall(max_norm=max_norm, is_whole=clipped == ours and norm_type == 2.0))
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
            yield "it clips some gradients, or others with them, or not always to the same norm"
        if self.reads:
            yield f"it reads gradients ({', '.join(sorted(self.reads)[:3])})"
        if self.loses:
            yield "it drops some gradients, or sets them to zero, before the update"
