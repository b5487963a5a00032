"""The order of backward passes and updates within the steps of a script, as far as an engine that updates needs it.

Such an engine sends the gradients of a step once, after its only synchronised backward pass, and updates when all
optimizers of the model have stepped. Under stock DDP a script may do otherwise.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence

import torch

from autosync.script.gradient_uses import GradientUses

ADDS = "its backward pass adds to gradients of the step before"
PASSES = "it runs another backward pass between a synchronised one and the update"
_UPDATES = "it updates twice with the same gradients"
_TURNS = "its optimizers do not all step once in each step"


class StepOrder:
    """Follows passes and updates; `uses` watches the gradients.

    The caller tells where a backward pass begins, if it knows, and of the first gradient of each pass.
    """

    def __init__(self, uses: GradientUses) -> None:
        self._uses = uses
        self._found: dict[str, None] = {}
        # Whether forward passes since the last backward pass ask for synchronisation.
        self._forward_syncs = False
        # Of the step under way.
        self._has_passes = False
        self._is_synchronised = False
        # Whether the gradients of the last backward pass are this rank's own.
        self._are_local = False
        self.updates_by_local = False
        """Whether DDP has not synchronised the last backward pass before an update."""
        self._stepped: list[weakref.ref[torch.optim.Optimizer]] = []
        # Whether the backward pass under way has found gradients.
        self._are_there = False
        self._steps: list[list[weakref.ref[torch.optim.Optimizer]]] = []

    def forward_begins(self, *, syncs: bool) -> None:
        """A forward pass begins, with the flag that `no_sync` sets."""
        self._forward_syncs |= syncs

    def backward_begins(self) -> None:
        """A backward pass begins, of this model or of another one."""
        self._are_there = self._uses.are_there()

    def gradients_come(self) -> None:
        """The backward pass brings a gradient of this model, its first one."""
        if self._are_there and not self._has_passes:
            self._found[ADDS] = None
        if self._is_synchronised and (self._are_there or self._stepped):
            self._found[PASSES] = None
        self._has_passes = True
        self._are_local = not self._forward_syncs
        self._is_synchronised |= self._forward_syncs
        self._forward_syncs = self._are_there = False

    def update_begins(self) -> None:
        """An optimizer's update begins."""
        self.updates_by_local |= self._are_local
        if not self._has_passes and self._uses.are_there():
            self._found[_UPDATES] = None

    def update_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """It has ended."""
        self._stepped.append(weakref.ref(optimizer))

    def step_ends(self, *, has_update: bool) -> None:
        """The next step begins. The one before does not count if its update was skipped."""
        if has_update:
            self._steps.append(self._stepped)
        self._stepped = []
        self._has_passes = self._is_synchronised = False

    def reasons(self, optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[str]:
        """Yield the reasons why only the script's own optimizers may update; `optimizers` are all of the model."""
        yield from self._found
        wanted = set(map(id, optimizers))
        if any(len(step) != len(wanted) or {id(one()) for one in step} != wanted for step in self._steps):
            yield _TURNS
