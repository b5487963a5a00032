"""The settings of an optimizer for updates that come later than the steps of their batches.

A script sets the learning rate before a step, perhaps by a scheduler. The update of this step's batch is made with what
was set then, and the script sees its own settings again after it. Numbers that the optimizer itself changes in an
update, as some count their updates, stay as they are.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch


class LateSettings:
    """The settings of each batch whose update is not yet made: what the optimizer's groups have besides parameters."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._noted: dict[int, list[dict[str, Any]]] = {}
        self._changed_by_updates: set[tuple[int, str]] = set()

    def _now(self) -> list[dict[str, Any]]:
        """Return the settings as they are."""
        groups = self._optimizer.param_groups
        return [{name: value for name, value in group.items() if name != "params"} for group in groups]

    def note(self, batch: int) -> None:
        """Note the settings for the update of a batch."""
        self._noted[batch] = copy.deepcopy(self._now())

    @contextlib.contextmanager
    def of(self, batch: int) -> Iterator[None]:
        """Let the optimizer have the settings of a batch while it updates."""
        mine, noted = self._now(), self._noted.pop(batch)
        for number, settings in enumerate(noted):
            self._set(number, settings)
        before = copy.deepcopy(self._now())
        yield
        after = self._now()
        for number, settings in enumerate(mine):
            for name, value in after[number].items():
                if not _is_same(before[number].get(name), value):
                    self._changed_by_updates.add((number, name))
            self._set(number, settings)

    def _set(self, number: int, settings: dict[str, Any]) -> None:
        kept = {name: value for name, value in settings.items() if (number, name) not in self._changed_by_updates}
        self._optimizer.param_groups[number].update(kept)


def _is_same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return one == other
