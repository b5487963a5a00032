"""The door of a session, whichever engine carries out its plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from autosync.runtime.checkpoints.loading import Loading
from autosync.runtime.session.training import Training


class Synchronisation(Protocol):
    """Keeps a model synchronised. `syncs` is false while gradients only accumulate."""

    syncs: bool
    training: Training

    @property
    def kept_apart(self) -> frozenset[str]:
        """The variables of which the optimizer's state is not whole on any worker."""

    @property
    def updates(self) -> bool:
        """Whether the engine updates variables."""

    @property
    def step(self) -> int:
        """How many steps were made, those before a checkpoint among them."""

    def settle(self, what: str) -> None:
        """Between two steps: have nothing under way. `what` is called, and refused where gradients are."""

    def go_on_from(self, loading: Loading) -> None:
        """Put in place what was read from a checkpoint. Nothing is under way."""

    def bring_home(self, entries: Mapping[str, dict[str, Any]], *, alone: bool) -> None:
        """Give the user's optimizer the state of what is kept apart; `alone`: no other worker gets it."""

    def drain(self) -> None:
        """Wait for all updates under way."""

    def where(self) -> str:
        """What is under way, in words."""

    def describe(self) -> str:
        """What carries out the plan, in words."""

    def leave_to_parent(self) -> None:
        """In a forked process: leave its copy of the model as an ordinary one, and the connections to the parent."""

    def close(self, *, patience_seconds: float | None = None) -> None:
        """End it: the model is an ordinary one again.

        Other ranks are waited for as long as in training, or no longer than `patience_seconds`.
        """
