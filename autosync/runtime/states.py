"""Optimizer states of what a rank updates in pieces, brought to the user's optimizer.

The engine keeps the state of a whole variable where the user's optimizer has it. A variable that is cut, or travels in
slices, is updated piece by piece, each with a state of its own. On a rank that has all pieces they make the state of
the variable, as it would be had the user's optimizer updated it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from autosync.plan.types import Plan


class PieceState(NamedTuple):
    """The optimizer's state of elements `start` to `stop` of a part (by position), which it has in some shape."""

    part: int
    start: int
    stop: int
    shape: tuple[int, ...]
    entry: Mapping[str, Any]


def bring_home(
    plan: Plan,
    pieces: Iterable[PieceState],
    parameters: Mapping[str, torch.Tensor],
    users: torch.optim.Optimizer,
) -> None:
    """Give the user's optimizer the state of each variable of which all pieces are here. `parameters` are by name."""
    found: dict[str, list[PieceState]] = {}
    for piece in pieces:
        found.setdefault(plan.parts[piece.part].variable.name, []).append(piece)
    for name, of_variable in found.items():
        parameter = parameters[name]
        if sum(piece.stop - piece.start for piece in of_variable) == parameter.numel():
            users.state[parameter] = {key: _joined(plan, key, of_variable, parameter) for key in of_variable[0].entry}


def _joined(plan: Plan, key: str, pieces: list[PieceState], parameter: torch.Tensor) -> Any:
    first = pieces[0].entry[key]
    if not isinstance(first, torch.Tensor) or key == "step" or first.shape != pieces[0].shape:
        # It is not of elements, but of the whole parameter.
        return copy.deepcopy(first)
    joined = torch.zeros_like(parameter, dtype=first.dtype, requires_grad=False)
    for index in dict.fromkeys(piece.part for piece in pieces):
        part = plan.parts[index]
        values = first.new_empty(part.num_elements)
        for piece in pieces:
            if piece.part == index:
                values[piece.start : piece.stop] = piece.entry[key].reshape(-1)
        target = joined if part.name.whole else joined.narrow(part.axis, part.begin, part.end - part.begin)
        target.copy_(values.view(part.shape))
    return joined
