"""Clipping and loss scaling, as a task declares them, for strategies under which no rank may hold all gradients.

Both need one number on all ranks: the sum of the squares of all gradients, which is finite if all of them are. The plan
computes it. The script calls torch's own `clip_grad_norm_` and `GradScaler` as usual. If they read sealed gradients,
the answer is that number. If they would change gradients, the change is noted here, and the engine makes it in its
updates.

If a scaler skips a step because gradients have overflowed, the step still takes place in the engine, but changes
nothing. Other ranks take part in it too, and transfers that bring parameters are part of every iteration.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from autosync.errors import OperationError
from autosync.runtime.local.operations import clip_coefficient
from autosync.runtime.local.optimizer_facts import StepScale

# The allowed relative difference of the script's coefficient and the engine's: larger than bfloat16's rounding.
_TOLERANCE = 0.02


class Declared:
    """Follows what a script does to one model's sealed gradients, step by step.

    `clip_norm` and `scales` are the task's. `sum_of_squares` waits for the plan's number, and `skip` makes the step
    without an update.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        clip_norm: float | None,
        scales: bool,
        sum_of_squares: Callable[[], float],
        skip: Callable[[], None],
    ) -> None:
        self.clips = clip_norm is not None
        self.scales = scales
        self._optimizer = optimizer
        self._clip_norm = clip_norm
        self._sum_of_squares = sum_of_squares
        self._skip = skip
        self._is_open = False
        self._sum: float | None = None
        self._inverse = 1.0
        # The factor of the script's clipping, once it has clipped; and the factor of clipping before its last call for
        # the norm.
        self._coefficient: float | None = None
        self._clipped = 1.0
        self._has_overflowed = False

    def begin(self) -> None:
        """Start with the new gradients of a step."""
        self._is_open = True
        self._sum = None
        self._inverse = 1.0
        self._coefficient = None
        self._clipped = 1.0
        self._has_overflowed = False

    def end(self, *, is_skipped: bool = False) -> StepScale:
        """End the step, which is called or skipped, and return how it treats its gradients."""
        # torch gives the scale to an optimizer whose own kernels undo it, for the call of its step.
        scale = getattr(self._optimizer, "grad_scale", None)
        if scale is not None:
            self._unscale_by(scale.double().reciprocal().float())
        self._is_open = False
        if not self._has_overflowed:
            # Otherwise the step is skipped, but the script may still clip, without effect, and needs the sum.
            self._sum = None
        return StepScale(
            inverse=self._inverse,
            is_skipped=is_skipped or self._has_overflowed,
            clips=self._coefficient is not None,
        )

    # Called for the script's functions.

    @property
    def factor(self) -> float:
        """By what the script has multiplied all gradients so far, in unscaling and clipping."""
        return self._inverse * (1.0 if self._coefficient is None else self._coefficient)

    def norm(self) -> float:
        """Return the norm of all gradients, after the unscaling and clipping that the script has done so far."""
        if self._coefficient is not None:
            self._clipped = self._coefficient
        return self._norm()

    def _norm(self) -> float:
        return math.sqrt(self._sum_of_all()) * self._inverse * self._clipped

    def clip(self, coefficient: float) -> None:
        """Note that the script multiplies gradients by a coefficient; refuse any but that of the declared clipping."""
        assert self._clip_norm is not None, "asked only where the task clips"
        expected = clip_coefficient(self._norm() ** 2, self._clip_norm)
        if math.isfinite(expected) and not math.isclose(coefficient, expected, rel_tol=_TOLERANCE):
            raise OperationError(
                f"the script multiplies gradients by {coefficient:.4g}; by the task's clip_norm {self._clip_norm:g}, "
                f"which the engine clips by, it would be {expected:.4g} (tune the task with the script's clip_norm)"
            )
        if self._coefficient is None:
            self._coefficient = expected

    def unscale(self, found_inf: torch.Tensor, inverse_scale: torch.Tensor) -> None:
        """Do a scaler's work: multiply gradients by the inverse of the scale, and report whether one was not finite.

        A scaler calls it once for each type of gradients.
        """
        if self._is_open:
            self._has_overflowed = not math.isfinite(self._sum_of_all())
            self._unscale_by(inverse_scale)
        if not self._has_overflowed:
            return
        found_inf.fill_(1.0)
        # The step of an optimizer that undoes the scale by itself is called in any case.
        if self._is_open and not getattr(self._optimizer, "_step_supports_amp_scaling", False):
            self._skip()

    def _unscale_by(self, inverse_scale: torch.Tensor) -> None:
        inverse = float(inverse_scale)
        if self._coefficient is not None and inverse != self._inverse:
            raise OperationError(
                "gradients are unscaled after they were clipped: the norm that was clipped is that of scaled ones "
                "(scaler.unscale_(optimizer) comes before clip_grad_norm_)"
            )
        self._inverse = inverse

    def _sum_of_all(self) -> float:
        if self._sum is None:
            if not self._is_open:
                raise OperationError(
                    "the gradients are those of the last step, and the ranks that update with them keep none (clipping "
                    "and unscaling come between backward and the step)"
                )
            self._sum = self._sum_of_squares()
        return self._sum
