"""The interface of a session, whether our engine or torch's reducer carries out its plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from autosync.runtime.checkpoints.loading import Loading
from autosync.runtime.session.training import Training


class Synchronisation(Protocol):
    """Keeps a model synchronised. `syncs` is false while gradients only accumulate."""

    syncs: bool
    training: Training

    @property
    def kept_apart(self) -> frozenset[str]:
        """The variables whose optimizer state is complete on no worker."""

    @property
    def updates(self) -> bool:
        """Whether the engine updates variables."""

    @property
    def step(self) -> int:
        """The number of synchronised steps, by which ranks agree, including those before a checkpoint."""

    @property
    def num_steps(self) -> int:
        """The number of optimizer steps made, including those before a checkpoint that was loaded."""

    def settle(self, what: str) -> None:
        """Finish everything under way, between two steps; refuse the call `what` while gradients are on their way."""

    def go_on_from(self, loading: Loading) -> None:
        """Install the state that was read from a checkpoint. No operation may be under way."""

    def bring_home(self, entries: Mapping[str, dict[str, Any]], *, alone: bool) -> None:
        """Give the user's optimizer the state of variables in `kept_apart`; `alone`: no other worker gets it."""

    def prepare(self) -> None:
        """Have the next backward pass synchronised, as after a forward pass with `syncs`."""

    def closure_has_run(self, optimizer: torch.optim.Optimizer) -> None:
        """Begin the step of an optimizer whose closure has returned, if the session was made within the closure."""

    def weigh(self, weight: float) -> None:
        """Weigh this rank's gradients of the next step by its weight among those of all workers."""

    def drain(self) -> None:
        """Wait for all updates under way."""

    def where(self) -> str:
        """Return what is under way, in words."""

    def describe(self) -> str:
        """Describe what carries out the plan, in words."""

    def leave_to_parent(self) -> None:
        """In a forked process, make its copy of the model an ordinary one, and leave the connections to the parent."""

    def close(self, *, patience_seconds: float | None = None) -> None:
        """End the session, so that the model is an ordinary one again.

        Waits for other ranks last as long as in training, or at most `patience_seconds`.
        """
