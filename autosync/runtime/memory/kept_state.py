"""What outlives a step, as data: elements of variables by what they are and where they lie, and optimizers' states.

A rank has some elements of a variable's momentum, another rank the rest; a plan for other ranks would cut it elsewhere.
So what is kept is told in places of the whole variable (`Place`), from which any plan can take its own.

The engine keeps the optimizer's state of a whole variable where the user's optimizer has it. A variable that is cut, or
travels in slices, is updated piece by piece, each with a state of its own. On a rank that has all pieces they make the
state of the variable, as it would be had the user's optimizer updated it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from autosync.errors import OperationError
from autosync.plan.types import Plan
from autosync.runtime.memory.element_ranges import write_range
from autosync.strategy.parts import Part

Path: TypeAlias = tuple[str, ...]
"""Of a tensor that is kept and is no elements of a variable: what it is, and of what."""


class Place(NamedTuple):
    """Elements `start` to `stop`, row by row, of what is `begin` to `end` of a variable along `axis`."""

    variable: str
    axis: int
    begin: int
    end: int
    start: int
    stop: int

    @classmethod
    def of(cls, part: Part, start: int, stop: int) -> Place:
        """Elements of a part."""
        return cls(part.variable.name, part.axis, part.begin, part.end, start, stop)

    @classmethod
    def whole(cls, variable: str, shape: Sequence[int]) -> Place:
        """All of a variable."""
        return cls(variable, 0, 0, shape[0] if shape else 1, 0, torch.Size(shape).numel())

    @property
    def num_elements(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"elements {self.start}:{self.stop} of {self.variable}, {self.begin}:{self.end} along axis {self.axis}"

    def read(self, whole: torch.Tensor) -> torch.Tensor:
        """These elements of a tensor that has the variable's shape, flat."""
        return self._cut(whole).reshape(-1)[self.start : self.stop]

    def write(self, whole: torch.Tensor, values: torch.Tensor) -> None:
        """Put flat values there."""
        write_range(self._cut(whole), self.start, values)

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether a variable of this shape has such a place."""
        if not (0 <= self.begin < self.end and 0 <= self.start <= self.stop):
            return False
        sizes = list(shape) or [1]
        if not (0 <= self.axis < len(sizes) and self.end <= sizes[self.axis]):
            return False
        sizes[self.axis] = self.end - self.begin
        return self.stop <= torch.Size(sizes).numel()

    def _cut(self, whole: torch.Tensor) -> torch.Tensor:
        return whole.narrow(self.axis, self.begin, self.end - self.begin) if whole.dim() else whole


class Held(NamedTuple):
    """Elements that a rank keeps from step to step: what they are (`residual`, `master` …), where, and their values.

    The values are flat, and often the very memory in which they are kept.
    """

    what: str
    place: Place
    values: torch.Tensor


class PieceState(NamedTuple):
    """The optimizer's state of elements `start` to `stop` of a part (by position), which it has in some shape."""

    part: int
    start: int
    stop: int
    shape: tuple[int, ...]
    entry: Mapping[str, Any]


def is_elementwise(key: str, value: Any, shape: Sequence[int]) -> bool:
    """Whether an entry of an optimizer's state has a number for each element of what has this shape."""
    return isinstance(value, torch.Tensor) and key != "step" and value.shape == tuple(shape)


def cut_entry(entry: Mapping[str, Any], place: Place, whole: Sequence[int], shape: Sequence[int]) -> dict[str, Any]:
    """A place's share of the state of a variable of shape `whole`, in the shape that its optimizer has it in.

    What has no number for each element, as the step has not, is of the whole variable, and copied.
    """
    return {
        key: place.read(value).clone().view(tuple(shape)) if is_elementwise(key, value, whole) else copy.deepcopy(value)
        for key, value in entry.items()
    }


def bring_home(
    plan: Plan,
    pieces: Iterable[PieceState],
    parameters: Mapping[str, torch.Tensor],
    put: Callable[[torch.Tensor, dict[str, Any]], None],
) -> None:
    """Put where it belongs the state of each variable of which all pieces are here. `parameters` are by name."""
    found: dict[str, list[PieceState]] = {}
    for piece in pieces:
        found.setdefault(plan.parts[piece.part].variable.name, []).append(piece)
    for name, of_variable in found.items():
        parameter = parameters[name]
        if sum(piece.stop - piece.start for piece in of_variable) == parameter.numel():
            put(parameter, {key: _joined(plan, key, of_variable, parameter) for key in of_variable[0].entry})


def _joined(plan: Plan, key: str, pieces: list[PieceState], parameter: torch.Tensor) -> Any:
    first = pieces[0].entry[key]
    if not is_elementwise(key, first, pieces[0].shape):
        # It is not of elements, but of the whole parameter.
        return copy.deepcopy(first)
    values = [
        (Place.of(plan.parts[piece.part], piece.start, piece.stop), piece.entry[key].reshape(-1)) for piece in pieces
    ]
    return joined(values, like=parameter, dtype=first.dtype)


def joined(
    pieces: Sequence[tuple[Place, torch.Tensor]], *, like: torch.Tensor, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """A whole variable of its pieces, in the shape, layout and place of `like`; what they leave open is refused."""
    whole = torch.empty_like(like, dtype=dtype or like.dtype, requires_grad=False)
    for place, values in pieces:
        if not place.fits(like.shape) or values.dim() != 1 or values.numel() != place.num_elements:
            raise OperationError(f"{place} are {list(values.shape)} numbers; the variable is {list(like.shape)}")
        place.write(whole, values)
    found = sum(place.num_elements for place, _ in pieces)
    if found != like.numel():
        name = pieces[0][0].variable if pieces else "a variable"
        raise OperationError(f"{found} elements are there of {name}, which has {like.numel()}")
    return whole
