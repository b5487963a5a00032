"""What must stay in training as it was when it began: which parameters are trained, and what the optimizer has."""

from __future__ import annotations

import torch

from autosync.errors import OperationError
from autosync.strategy.bundle import Bundle


class Expected:
    """Looks in every step whether somebody has changed what a session cannot follow. `are_engines`: it updates."""

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, bundle: Bundle, *, are_engines: bool
    ) -> None:
        frozen = {one.name for one in bundle.model.untrained if one.reason == "frozen"}
        self._frozen = {name: one for name, one in model.named_parameters() if name in frozen}
        self._optimizer = optimizer
        self._num_parameters = self._count() if are_engines else []

    def check(self) -> None:
        """Refuse what was changed."""
        for name, parameter in self._frozen.items():
            if parameter.requires_grad:
                raise OperationError(
                    f"{name} is trainable now; in the bundle it is frozen, and nobody synchronises it (tune the model "
                    "as it is now, release it and go on with that bundle)"
                )
        if self._num_parameters and self._count() != self._num_parameters:
            raise OperationError(
                f"the optimizer has {sum(self._count())} parameters in {len(self._count())} groups, and had "
                f"{sum(self._num_parameters)} in {len(self._num_parameters)} when training began, by which the engine "
                "updates (release(model) and parallelize again to go on)"
            )

    def _count(self) -> list[int]:
        return [len(group["params"]) for group in self._optimizer.param_groups]
