"""Updates away from the user's optimizer: what a server or a shard's owner updates for all.

The owner keeps a copy of its piece of the parameters and an optimizer of the user's class over it, with the options of
the group that each parameter is in, read anew at every step (learning rates change). Elementwise optimizers only, which
the rules of strategies see to: so the piece's update is the piece of the update.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from autosync.plan.expansion import chunk_bounds
from autosync.plan.types import Local, Plan, Region
from autosync.runtime.tensors import RegionTensors


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """What is owned of a region: its place in the operation's buffer, and the parameter that our optimizer updates."""

    region: Region
    window: slice
    start: int
    value: torch.nn.Parameter
    group: int
    original: torch.nn.Parameter


class OwnedUpdate:
    """One update operation on the rank that owns it, or a shard of it."""

    def __init__(
        self,
        *,
        plan: Plan,
        operation: Local,
        rank: int,
        tensors: RegionTensors,
        parameters: Mapping[str, torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self._plan = plan
        self._operation = operation
        self._tensors = tensors
        self._pieces = tuple(self._cut(rank, parameters, optimizer))
        self._groups = sorted({piece.group for piece in self._pieces})
        self._optimizer = self._make_optimizer(optimizer) if self._pieces else None

    def _cut(
        self, rank: int, parameters: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer
    ) -> Iterator[_Piece]:
        group_of = {id(p): i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
        owned = self._window(rank)
        values = self._tensors.read(self._operation.outputs)
        position = 0
        for index in self._operation.outputs:
            region = self._plan.regions[index]
            start, stop = max(position, owned.start), min(position + region.num_elements, owned.stop)
            original = parameters[self._plan.parts[region.part].variable.name]
            # What the user's optimizer does not have is not updated.
            if start < stop and id(original) in group_of:
                yield _Piece(
                    region=region,
                    window=slice(start, stop),
                    start=start - position,
                    value=torch.nn.Parameter(values[start:stop].clone()),
                    group=group_of[id(original)],
                    original=original,
                )
            position += region.num_elements

    def _window(self, rank: int) -> slice:
        num_elements = sum(self._plan.regions[index].num_elements for index in self._operation.outputs)
        if not self._operation.sharded:
            return slice(0, num_elements)
        group = next(group for group in self._operation.groups if rank in group)
        bounds = chunk_bounds(num_elements, len(group))
        return slice(bounds[group.index(rank)], bounds[group.index(rank) + 1])

    def _make_optimizer(self, users: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """An optimizer of the user's class over our pieces, that goes on from the state which the user's has."""
        kind: Any = type(users)
        made: torch.optim.Optimizer = kind(
            [
                {
                    **{key: value for key, value in users.param_groups[group].items() if key != "params"},
                    "params": [piece.value for piece in self._pieces if piece.group == group],
                }
                for group in self._groups
            ]
        )
        for piece in self._pieces:
            for key, value in users.state.get(piece.original, {}).items():
                made.state[piece.value][key] = self._piece_of(key, value, piece)
        return made

    def _piece_of(self, key: str, value: Any, piece: _Piece) -> Any:
        """The piece's share of a state tensor; what has another shape, as the step has, is of the whole parameter."""
        if isinstance(value, torch.Tensor) and key != "step" and value.shape == piece.original.shape:
            size = piece.window.stop - piece.window.start
            return self._tensors.cut(value, piece.region)[piece.start : piece.start + size].clone()
        return copy.deepcopy(value)

    def run(self, options: Sequence[Mapping[str, Any]]) -> None:
        """Update the owned pieces with the options (of each of the user's groups) that hold in this step."""
        if self._optimizer is None:
            return
        for ours, group in zip(self._optimizer.param_groups, self._groups, strict=True):
            ours.update(options[group])
        gradient = self._tensors.read(self._operation.inputs)
        values = self._tensors.read(self._operation.outputs)
        for piece in self._pieces:
            # Whatever changed the parameters meanwhile (a checkpoint that was loaded, say) holds.
            piece.value.data.copy_(values[piece.window])
            piece.value.grad = gradient[piece.window]
        self._optimizer.step()
        for piece in self._pieces:
            values[piece.window] = piece.value.detach()
            piece.value.grad = None
        self._tensors.write(self._operation.outputs, values)
