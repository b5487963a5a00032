"""The gradient of a part as a copy in its message's buffer."""

from __future__ import annotations

import torch

from autosync.strategy.parts import Part


class StagedGradient:
    """A part's place in a buffer, with all tensors that copying needs: made once, because each costs microseconds."""

    __slots__ = ("_begin", "_cut_axis", "_divisor", "_length", "_mark", "flat", "shaped")

    def __init__(
        self, part: Part, flat: torch.Tensor, mark: tuple[torch.Tensor, torch.Tensor], *, divisor: int
    ) -> None:
        self.flat = flat
        self.shaped = flat.view(part.shape)
        self._cut_axis = None if part.name.whole else part.axis
        self._begin, self._length = part.begin, part.end - part.begin
        self._mark = mark
        self._divisor = divisor

    def take(self, gradient: torch.Tensor) -> None:
        """Copy the part of a variable's gradient into the buffer, and mark it as used (see `unused_variables`).

        What is divided before the sum is divided here (see `early_division`).
        """
        if self._cut_axis is not None:
            gradient = gradient.narrow(self._cut_axis, self._begin, self._length)
        self.shaped.copy_(gradient)
        if self._divisor > 1:
            self.flat.div_(self._divisor)
        self.flat.index_add_(0, *self._mark)
