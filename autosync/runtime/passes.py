"""Backward passes: when one begins and when it has really ended, which within a reentrant checkpoint is not the same.

A reentrant checkpoint runs backward passes within the backward pass. torch calls back at the end of each; which one is
the outermost it does not tell. It is the one that reaches the model's outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from autosync.runtime.hooks import Hook


class Passes:
    """Calls `begins` and `ends` for each backward pass through a model's outputs, or, where the model itself was not
    called, from the first gradient on that is told of by `gradient_came`.
    """

    def __init__(self, model: torch.nn.Module, *, begins: Callable[[], None], ends: Callable[[], None]) -> None:
        self._begins = begins
        self._ends = ends
        # torch's number of the pass.
        self._under_way: int | None = None
        self._hook = model.register_forward_hook(Hook(self._forward_ended))

    def close(self) -> None:
        """Take the hook away."""
        self._hook.remove()

    def gradient_came(self) -> None:
        """A gradient came in the pass that is under way, or in one within it."""
        if self._under_way is None:
            self._begin()

    def _forward_ended(self, _: torch.nn.Module, __: Any, outputs: Any) -> None:
        if torch.is_grad_enabled():
            for tensor in _tensors(outputs):
                if tensor.requires_grad:
                    tensor.register_hook(self._reached)  # type: ignore[no-untyped-call]

    def _reached(self, _: torch.Tensor) -> None:
        # One that failed had no end: the next one has another number.
        if torch._C._current_graph_task_id() != self._under_way:  # noqa: SLF001 - torch has no other way to ask
            self._begin()

    def _begin(self) -> None:
        self._under_way = torch._C._current_graph_task_id()  # noqa: SLF001 - the same
        torch.autograd.Variable._execution_engine.queue_callback(self._end)  # noqa: SLF001 - DDP's own way to hear of the end of backward
        self._begins()

    def _end(self) -> None:
        if self._under_way is not None:
            self._under_way = None
            self._ends()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
