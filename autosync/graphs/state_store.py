"""The states of a batch in one tensor that groups read and write, with a gradient of the same shape.

Autograd sees a chain: each read and write takes a token from the write before it. So the backward pass runs the groups
in reverse order, and each group adds to the rows that it read and takes the rows that it wrote. Concatenating states
after each group instead would copy all earlier states every time.
"""

# torch's `save_for_backward`, `apply` and contexts have no types.
# mypy: disable-error-code="no-untyped-call,misc"

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable


class StateStore:
    """The states of one batch in the order of its schedule, and during the backward pass their gradient."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.states: torch.Tensor | None = None
        self.gradient: torch.Tensor | None = None
        self._token: torch.Tensor | None = None

    def read_slice(self, start: int, stop: int) -> torch.Tensor:
        """Return a copy of consecutive rows."""
        rows: torch.Tensor = _ReadSlice.apply(self._token, self, start, stop)
        return rows

    def read_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a copy of the rows with these numbers."""
        found: torch.Tensor = _ReadRows.apply(self._token, self, rows)
        return found

    def write(self, states: torch.Tensor, start: int, stop: int) -> None:
        """Store the states of a group."""
        token = states.new_empty(0) if self._token is None else self._token
        self._token = _Write.apply(states, token, self, (start, stop))

    def finish(self) -> torch.Tensor:
        """Return the states of all rows, after the last group."""
        states: torch.Tensor = _Finish.apply(self._token, self)
        return states

    def release(self) -> None:
        """Forget the states. The backward pass owns the store: with its own results, the store would live for ever."""
        self.states = self._token = None


class _ReadSlice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, store: StateStore, start: int, stop: int) -> torch.Tensor:
        ctx.store, ctx.place, ctx.token = store, (start, stop), token.new_empty(0)
        assert store.states is not None, "a group reads states of earlier groups"
        return store.states[start:stop].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        start, stop = ctx.place
        ctx.store.gradient[start:stop] += gradient
        return ctx.token, None, None, None


class _ReadRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, store: StateStore, rows: torch.Tensor) -> torch.Tensor:
        ctx.store, ctx.rows, ctx.token = store, rows, token.new_empty(0)
        assert store.states is not None, "a group reads states of earlier groups"
        return store.states.index_select(0, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.store.gradient.index_add_(0, ctx.rows, gradient)
        return ctx.token, None, None


class _Write(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: torch.Tensor, token: torch.Tensor, store: StateStore, place: tuple[int, int]
    ) -> torch.Tensor:
        start, stop = place
        if store.states is None:
            store.states = states.new_empty(store.num_rows, states.shape[1])
        store.states[start:stop] = states
        ctx.store, ctx.place, ctx.token = store, place, token.new_empty(0)
        return token.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _token: torch.Tensor) -> Any:
        start, stop = ctx.place
        return ctx.store.gradient[start:stop], ctx.token, None, None


class _Finish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, store: StateStore) -> torch.Tensor:
        ctx.store, ctx.token = store, token.new_empty(0)
        assert store.states is not None, "a schedule has at least one group"
        return store.states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        # Groups add to it, and it may be the caller's.
        ctx.store.gradient = gradient.clone()
        return ctx.token, None
