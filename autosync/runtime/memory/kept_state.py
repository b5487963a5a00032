"""State that outlives a step, as data: elements of variables by kind and place, and optimizers' states.

One rank may have some elements of a variable's momentum and another rank the rest, and a plan for other ranks would
divide them differently. So kept state is described by places in the whole variable (`Place`), from which any plan can
take its own.

The engine keeps the optimizer's state of a whole variable where the user's optimizer has it. A variable that is cut, or
travels in slices, is updated piece by piece, and each piece has its own state. On a rank that has all pieces, they can
be joined to the state that the user's optimizer would have had.
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
"""The name of a kept tensor that is not elements of a variable: its kind, and then what it belongs to."""


class Place(NamedTuple):
    """Elements `start` to `stop`, in row order, of the range `begin` to `end` of a variable along `axis`."""

    variable: str
    axis: int
    begin: int
    end: int
    start: int
    stop: int

    @classmethod
    def of(cls, part: Part, start: int, stop: int) -> Place:
        """Return the place of elements of a part."""
        return cls(part.variable.name, part.axis, part.begin, part.end, start, stop)

    @classmethod
    def whole(cls, variable: str, shape: Sequence[int]) -> Place:
        """Return the place of a whole variable."""
        return cls(variable, 0, 0, shape[0] if shape else 1, 0, torch.Size(shape).numel())

    @property
    def num_elements(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"elements {self.start}:{self.stop} of {self.variable}, {self.begin}:{self.end} along axis {self.axis}"

    def read(self, whole: torch.Tensor) -> torch.Tensor:
        """Return the elements at this place of a tensor with the variable's shape, as a flat tensor."""
        return self._cut(whole).reshape(-1)[self.start : self.stop]

    def write(self, whole: torch.Tensor, values: torch.Tensor) -> None:
        """Write flat values to this place of a tensor with the variable's shape."""
        write_range(self._cut(whole), self.start, values)

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether this place lies within a variable of this shape."""
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
    """Elements that a rank keeps from step to step: their kind (`residual`, `master` and so on), place and values.

    The values are flat, and often share the memory in which they are kept.
    """

    what: str
    place: Place
    values: torch.Tensor


class PieceState(NamedTuple):
    """The optimizer's state of elements `start` to `stop` of a part (by position); `entry` has them in `shape`."""

    part: int
    start: int
    stop: int
    shape: tuple[int, ...]
    entry: Mapping[str, Any]


def is_elementwise(key: str, value: Any, shape: Sequence[int]) -> bool:
    """Whether an entry of an optimizer's state has one number for each element of a tensor with this shape."""
    return isinstance(value, torch.Tensor) and key != "step" and value.shape == tuple(shape)


def cut_entry(entry: Mapping[str, Any], place: Place, whole: Sequence[int], shape: Sequence[int]) -> dict[str, Any]:
    """Return a place's share of a variable's state. `whole` is the variable's shape, `shape` the share's own.

    Values without a number for each element, such as the step, belong to the whole variable and are copied.
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
    """Call `put` with the joined state of each variable of which all pieces are here. `parameters` are by name."""
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
        # The value belongs to the whole parameter, not to elements.
        return copy.deepcopy(first)
    values = [
        (Place.of(plan.parts[piece.part], piece.start, piece.stop), piece.entry[key].reshape(-1)) for piece in pieces
    ]
    return joined(values, like=parameter, dtype=first.dtype)


def joined(
    pieces: Sequence[tuple[Place, torch.Tensor]], *, like: torch.Tensor, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Join the pieces of a whole variable, with shape, layout and device of `like`; refuse pieces that leave gaps."""
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
