"""Follows gradients as backward computes them, and reports each variable once in a pass, when its gradient is complete.

Like DDP, a session notices a gradient after the script's own hooks, whenever these were registered: it listens at the
node that accumulates the gradient, and torch runs a tensor's hooks before that. So what such a hook changes in the
gradient is synchronised too.

A gradient can come several times in one backward pass: a layer under two reentrant checkpoints gets a part of it in
each inner pass. So the first pass reports nothing before its end, and counts how often each gradient came; later passes
report a gradient when it has come as often as in any pass before. A gradient that comes less often is reported at the
end, which is always right.

A gradient that arrives may share its memory with others. Then it gets memory of its own here, before anything uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from autosync.errors import OperationError
from autosync.runtime.memory.shared_gradients import take_apart


class GradientHook:
    """Calls `came` with a parameter whenever autograd has added to its gradient, which has memory of its own then.

    A function of the script's (or DDP's own, around outputs that the loss leaves out) may bring no gradient. Then
    `brought_none` is called, if it is given.
    """

    def __init__(
        self,
        parameter: torch.nn.Parameter,
        came: Callable[[torch.nn.Parameter], None],
        brought_none: Callable[[torch.nn.Parameter], None] | None = None,
    ) -> None:
        def hear(_: Any, brought: tuple[torch.Tensor | None, ...]) -> None:
            if brought[0] is not None:
                take_apart(parameter, brought[0])
                came(parameter)
            elif brought_none is not None:
                brought_none(parameter)

        with torch.enable_grad():
            view: Any = parameter.expand_as(parameter)
        # Autograd's node that accumulates the gradient lives as long as a reference to it is held.
        self._node: Any = view.grad_fn.next_functions[0][0]
        self._handle = self._node.register_hook(hear)

    def remove(self) -> None:
        """Remove the hook."""
        self._handle.remove()
        self._node = None


class Arrivals:
    """Follows the gradients of some parameters, by name.

    `came` is called whenever a gradient comes, and returns whether it counts. `is_whole` is called when a gradient is
    complete. With `makes_zeros`, the gradient of a parameter that autograd reaches with no gradient is zeros, as under
    DDP that finds no unused parameters.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        *,
        came: Callable[[str], bool],
        is_whole: Callable[[str], None],
        makes_zeros: bool = False,
    ) -> None:
        self._came = came
        self._is_whole = is_whole
        self._usual: dict[str, int] = {}
        self._times: dict[str, int] = {}
        self._told: set[str] = set()
        self._hooks = {
            name: GradientHook(one, self._hearing(name), self._hearing(name, is_none=True) if makes_zeros else None)
            for name, one in parameters.items()
        }

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()

    def begin(self) -> None:
        """Begin a pass."""
        self._times.clear()
        self._told.clear()

    def end(self) -> list[str]:
        """End the pass: report gradients that were not reported yet, and return the names of all that did not come."""
        for name in self._times:
            if name not in self._told:
                self._is_whole(name)
        for name, times in self._times.items():
            self._usual[name] = max(times, self._usual.get(name, 0))
        return [name for name in self._hooks if name not in self._times]

    def _hearing(self, name: str, *, is_none: bool = False) -> Callable[[torch.nn.Parameter], None]:
        def hear(parameter: torch.nn.Parameter) -> None:
            if not self._came(name):
                return
            if is_none and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter, requires_grad=False)
            times = self._times[name] = self._times.get(name, 0) + 1
            usual = self._usual.get(name)
            if times == usual:
                self._told.add(name)
                self._is_whole(name)
            elif name in self._told:
                raise OperationError(
                    f"the gradient of {name} came {times} times in this backward pass and {usual} times in those "
                    "before, when it was whole: a layer is under more reentrant checkpoints than it was "
                    "(checkpoint(..., use_reentrant=False) has no such passes within a pass)"
                )

        return hear
