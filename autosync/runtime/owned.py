"""Updates away from the user's optimizer: what a server or a shard's owner updates for all.

The owner keeps a copy of its piece of the parameters and an optimizer of the user's class over it, with the options of
the group that each parameter is in, read anew at every step (learning rates change). Elementwise optimizers only, which
the rules of strategies see to: so the piece's update is the piece of the update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from autosync.plan.expansion import chunk_bounds
from autosync.plan.types import Local, Plan
from autosync.runtime.tensors import RegionTensors


class OwnedUpdate:
    """One update operation on the rank that owns it."""

    def __init__(
        self,
        *,
        plan: Plan,
        operation: Local,
        rank: int,
        tensors: RegionTensors,
        optimizer: torch.optim.Optimizer,
        group_of: Mapping[str, int],
    ) -> None:
        self._operation = operation
        self._tensors = tensors
        self._user_optimizer = optimizer
        self._mine = self._window(plan, rank)
        self._pieces: list[tuple[slice, torch.nn.Parameter]] = []
        self._optimizer = self._make_optimizer(plan, group_of)

    def _window(self, plan: Plan, rank: int) -> slice:
        num_elements = sum(plan.regions[index].num_elements for index in self._operation.outputs)
        if not self._operation.sharded:
            return slice(0, num_elements)
        group = next(group for group in self._operation.groups if rank in group)
        bounds = chunk_bounds(num_elements, len(group))
        return slice(bounds[group.index(rank)], bounds[group.index(rank) + 1])

    def _make_optimizer(self, plan: Plan, group_of: Mapping[str, int]) -> torch.optim.Optimizer | None:
        """Our own copy of each piece in one parameter group per group of the user's."""
        values = self._tensors.read(self._operation.outputs)
        by_group: dict[int, list[torch.nn.Parameter]] = {}
        position = 0
        for index in self._operation.outputs:
            region = plan.regions[index]
            window = self._intersection(position, region.num_elements)
            if window.start < window.stop:
                piece = torch.nn.Parameter(values[window].clone())
                self._pieces.append((window, piece))
                by_group.setdefault(group_of[plan.parts[region.part].variable.name], []).append(piece)
            position += region.num_elements
        if not by_group:
            return None
        self._groups = sorted(by_group)
        options = [{"params": by_group[group], **self._options(group)} for group in self._groups]
        kind: Any = type(self._user_optimizer)
        made: torch.optim.Optimizer = kind(options)
        return made

    def _intersection(self, position: int, size: int) -> slice:
        start, stop = max(position, self._mine.start), min(position + size, self._mine.stop)
        return slice(start, max(start, stop))

    def _options(self, group: int) -> dict[str, Any]:
        return {key: value for key, value in self._user_optimizer.param_groups[group].items() if key != "params"}

    def run(self, options: Sequence[Mapping[str, Any]]) -> None:
        """Update the owned piece with the options (of each of the user's groups) that hold in this step."""
        if self._optimizer is None:
            return
        for ours, group in zip(self._optimizer.param_groups, self._groups, strict=True):
            ours.update(options[group])
        gradient = self._tensors.read(self._operation.inputs)
        for window, piece in self._pieces:
            piece.grad = gradient[window]
        self._optimizer.step()
        values = self._tensors.read(self._operation.outputs)
        for window, piece in self._pieces:
            values[window] = piece.detach()
            piece.grad = None
        self._tensors.write(self._operation.outputs, values)
