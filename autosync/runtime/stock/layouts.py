"""Keeps the memory layouts of parameters equal on all ranks, because torch's Reducer sums gradients in memory order."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from autosync.errors import OperationError
from autosync.runtime.session.agreement import agree, has_stated_facts, layouts_of

_RULE = (
    "all ranks must change them before the same step, because torch's reducer sums gradients in memory order "
    "(parallelize(..., hand_off=False) trains a model whose layouts differ between ranks by autosync's engine)"
)


class Layouts:
    """The strides of parameters, which a script may change during training, for example to channels_last.

    New strides need a new Reducer, and all ranks must make it together: if one rank made it alone, its messages would
    mix with the others' gradients. So a rank that finds new strides first asks all others, through a store that only
    this object uses. As long as strides stay the same, nothing is sent.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        store: Any,
        *,
        rank: int,
        num_ranks: int,
        patience: dt.timedelta,
    ) -> None:
        self._parameters = parameters
        # Only tensors with two axes or more can have several dense layouts.
        self._matrices = [parameter for parameter in parameters.values() if parameter.dim() > 1]
        self._store = store
        self._rank = rank
        self._num_ranks = num_ranks
        self._patience = patience
        self._num_changes = 0
        self._strides = self._current()

    def _current(self) -> list[tuple[int, ...]]:
        return [parameter.stride() for parameter in self._matrices]

    def have_changed(self) -> bool:
        """Return whether strides have changed since the last call. Raise unless all ranks changed to the same ones."""
        current = self._current()
        if current == self._strides:
            return False
        store = self._next_store()
        try:
            agree(
                store,
                rank=self._rank,
                num_ranks=self._num_ranks,
                facts=layouts_of(self._parameters),
                patience=self._patience,
            )
        except OperationError as error:
            raise OperationError(
                f"rank {self._rank} has changed the memory layouts of parameters during training, and not every other "
                f"rank has changed its own in the same way; {_RULE}"
            ) from error
        self._num_changes += 1
        self._strides = current
        return True

    def refuse_lone_change(self) -> OperationError | None:
        """Return the error of a pass that failed because another rank has changed its layouts; None if none has."""
        store = self._next_store()
        for other in range(self._num_ranks):
            if other != self._rank and has_stated_facts(store, other):
                return OperationError(
                    f"rank {other} has changed the memory layouts of parameters during training, and rank {self._rank} "
                    f"has not; {_RULE}"
                )
        return None

    def _next_store(self) -> Any:
        return dist.PrefixStore(f"change {self._num_changes}/", self._store)  # type: ignore[attr-defined]
