"""The bytes that cross the boundary between two stages: values, one behind the other in one buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from autosync.runtime.memory.byte_views import as_bytes
from autosync.specs.profile.tape import Tape


class _Place(NamedTuple):
    value: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    stop: int


class BoundaryBytes:
    """The places of the values that cross a boundary. Only the values in `with_gradient` have bytes backward."""

    def __init__(self, tape: Tape, values: Sequence[int]) -> None:
        self.values = tuple(values)
        self.with_gradient = frozenset(number for number in values if tape.values[number].has_gradient)
        self._forward = _places(tape, values)
        self._backward = _places(tape, [number for number in values if number in self.with_gradient])

    @property
    def num_bytes(self) -> tuple[int, int]:
        """The bytes that cross forward and backward."""
        return _length(self._forward), _length(self._backward)

    def pack(self, values: Mapping[int, torch.Tensor], *, backward: bool = False) -> torch.Tensor:
        """Return the bytes of values, in their own memory if there is only one."""
        places = self._backward if backward else self._forward
        if len(places) == 1:
            return as_bytes(values[places[0].value])
        buffer = torch.empty(_length(places), dtype=torch.uint8)
        for place in places:
            _view(buffer, place).copy_(values[place.value])
        return buffer

    def unpack(self, buffer: torch.Tensor, *, backward: bool = False) -> dict[int, torch.Tensor]:
        """Return the values in a buffer, in its memory."""
        return {place.value: _view(buffer, place) for place in (self._backward if backward else self._forward)}


def _places(tape: Tape, values: Sequence[int]) -> list[_Place]:
    """Return the places of values, those with the longest elements first, so that each is aligned."""
    found: list[_Place] = []
    start = 0
    for number in sorted(values, key=lambda number: (-tape.values[number].dtype.itemsize, number)):
        value = tape.values[number]
        found.append(_Place(number, value.shape, value.dtype, start, start + value.num_bytes))
        start += value.num_bytes
    return found


def _length(places: Sequence[_Place]) -> int:
    return places[-1].stop if places else 0


def _view(buffer: torch.Tensor, place: _Place) -> torch.Tensor:
    return buffer[place.start : place.stop].view(place.dtype).view(place.shape)
