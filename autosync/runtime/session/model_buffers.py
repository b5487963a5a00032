"""Buffers of a model (BatchNorm's statistics, for example) that all workers take from the first one, as under DDP.

They take them at the beginning of a forward pass in training, if the gradients of the last pass were synchronised.
Unlike under DDP, a forward pass in evaluation does not take part, so one rank can evaluate alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from autosync.plan.expansion import expand
from autosync.runtime.memory.byte_views import as_bytes
from autosync.runtime.session.hooks import Hook
from autosync.runtime.wire.exchange import Exchange
from autosync.runtime.wire.flow_control import Flow
from autosync.runtime.wire.links import Links
from autosync.runtime.wire.transfer_pieces import cut_moves

_TAG = 2**29 - 1
"""The tag of these messages; no operation of a plan has this number."""


class Buffers:
    """Keeps a model's buffers equal to the first worker's, from `begin` on."""

    def __init__(self, model: torch.nn.Module, links: Links, *, num_workers: int) -> None:
        self._model = model
        self._links = links
        self._num_workers = num_workers
        self._syncs: Callable[[], bool] = lambda: True
        self._exchange = Exchange(links, Flow())
        self._are_due = True
        self._hooks: list[Any] = []

    @property
    def num_bytes(self) -> int:
        """The number of bytes that the first worker sends to the others in a step."""
        return sum(buffer.numel() * buffer.element_size() for buffer in self._model.buffers())

    def begin(self, syncs: Callable[[], bool]) -> None:
        """Start to follow forward passes. `syncs` returns whether gradients are synchronised now."""
        self._syncs = syncs
        if self._num_workers > 1 and self.num_bytes:
            self._hooks = [
                self._model.register_forward_pre_hook(Hook(self._forward_begins), prepend=True),
                self._model.register_forward_hook(Hook(self._forward_ended)),
            ]

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _forward_begins(self, model: torch.nn.Module, _: Any) -> None:
        if self._are_due and model.training and torch.is_grad_enabled():
            self._take()

    def _forward_ended(self, model: torch.nn.Module, *_: Any) -> None:
        if model.training and torch.is_grad_enabled():
            self._are_due = self._syncs()

    @torch.no_grad()
    def _take(self) -> None:
        buffers = [buffer for buffer in self._model.buffers() if buffer.numel()]
        there = [as_bytes(buffer) for buffer in buffers]
        # All buffers are copied from their device at once; links send host memory.
        values = torch.cat([one.to(there[0].device) for one in there]).cpu()
        moves = expand("broadcast", "tree", self._num_workers)
        pieces = cut_moves(moves, (0, len(values)), position=self._links.rank, item_bytes=1)
        self._exchange.run(pieces, values, members=range(self._num_workers), tag=_TAG, priority=0)
        if self._links.rank == 0:
            return
        autograd: Any = torch.autograd
        # Autograd may have saved such a buffer for a backward pass; DDP hides the change as well.
        with autograd._unsafe_preserve_version_counter(tuple(buffers)):  # noqa: SLF001 - as DDP
            sizes = [len(one) for one in there]
            for buffer, part in zip(buffers, torch.split(values.to(there[0].device), sizes), strict=True):
                # Bytes may begin anywhere, but other types must lie at multiples of their size.
                buffer.copy_(part.clone().view(buffer.dtype).view(buffer.shape))
