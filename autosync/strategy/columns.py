"""Strategies as columns of numbers, for compiled code that handles thousands of strategies a second.

A batch of strategies for one model is a few flat arrays. Strategy i has the messages `first_message[i]` to
`first_message[i + 1]`, and message j the parts `first_part[j]` to `first_part[j + 1]`. Each number says one thing, so
changing a strategy means changing numbers: another lane, another codec, or a part moved to another message. Numbers
stand for names: a variable's position in the model, a synchroniser's or codec's position in a `Numbering`. The parts of
a variable say where it is cut.

The columns hold the whole strategy except its name, shares, batching of graphs and input, on which no operation of a
plan depends. Strategies with stages have no columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from autosync.errors import DoesNotApplyError
from autosync.specs.model import ModelSpec
from autosync.strategy.codecs import Codec
from autosync.strategy.parts import Partition, PartName
from autosync.strategy.representation import Message, Overlap, Strategy
from autosync.strategy.synchronisers.base import Synchroniser

Integers = npt.NDArray[np.int64]

OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)
WHOLE = -1
"""The number of a part that is an uncut variable."""

NO_SLICES = -1


class Columns(NamedTuple):
    """A batch of strategies.

    - by strategy: `overlap`, a position in `OVERLAPS`;
    - by message, in the order in which they are written: the fields of `Message`, with `slice_bytes` `NO_SLICES` for a
      message that is not sliced;
    - by part, in the message's order: the variable, the part's number among the variable's parts (`WHOLE` if it is not
      cut), and the axis with the part's begin and end along it.
    """

    overlap: Integers
    first_message: Integers
    synchroniser: Integers
    codec: Integers
    priority: Integers
    lane: Integers
    slice_bytes: Integers
    first_part: Integers
    variable: Integers
    number: Integers
    axis: Integers
    begin: Integers
    end: Integers


_MESSAGE_COLUMNS = ("synchroniser", "codec", "priority", "lane", "slice_bytes")
_PART_COLUMNS = ("variable", "number", "axis", "begin", "end")

_Row = tuple[int, int, int, int, int]


class Numbering:
    """The numbers of a model's variables, and of all synchronisers and codecs met so far.

    The numbers never change. Codec 0 stands for no codec.
    """

    def __init__(self, model: ModelSpec) -> None:
        self._variables = model.variables
        self._place_of = {variable.name: position for position, variable in enumerate(model.variables)}
        self._rows: list[int] = []
        for position, variable in enumerate(model.variables):
            self._rows += (position, WHOLE, 0, 0, variable.shape[0] if variable.shape else 1)
        self._synchronisers: dict[Synchroniser, int] = {}
        self._codecs: dict[Codec | None, int] = {None: 0}

    @property
    def synchronisers(self) -> tuple[Synchroniser, ...]:
        """The synchronisers that have occurred, by their numbers."""
        return tuple(self._synchronisers)

    @property
    def codecs(self) -> tuple[Codec | None, ...]:
        """The codecs that have occurred, by their numbers."""
        return tuple(self._codecs)

    def synchroniser(self, synchroniser: Synchroniser) -> int:
        """Return the number of a synchroniser; a new one gets the next number."""
        return self._synchronisers.setdefault(synchroniser, len(self._synchronisers))

    def codec(self, codec: Codec | None) -> int:
        """Return the number of a codec; a new one gets the next number."""
        return self._codecs.setdefault(codec, len(self._codecs))

    def encode(self, strategies: Sequence[Strategy]) -> Columns:
        """Return legal strategies as columns; raise KeyError if one names an unknown variable or part."""
        # Flat lists of numbers: tuples would be many objects that the garbage collector scans.
        messages: list[int] = []
        places: list[int] = []
        num_parts: list[int] = []
        rows = list(self._rows)
        for strategy in strategies:
            if strategy.stages:
                what = "a strategy with stages cannot be predicted"
                raise DoesNotApplyError(what, rule="simulators play strategies in which each rank computes all layers")
            place_of = self._with_cuts(strategy.partitions, rows) if strategy.partitions else self._place_of
            numbers: dict[int, int] = {}
            for message in strategy.messages:
                # Messages mostly share a few synchronisers; hashing these each time would take long.
                synchroniser = message.synchroniser
                number = numbers.get(id(synchroniser))
                if number is None:
                    number = numbers[id(synchroniser)] = self.synchroniser(synchroniser)
                codec = 0 if message.codec is None else self.codec(message.codec)
                slice_bytes = NO_SLICES if message.slice_bytes is None else message.slice_bytes
                messages += (number, codec, message.priority, message.lane, slice_bytes)
                num_parts.append(len(message.parts))
                places += [place_of[name] for name in message.parts]
        parts = _table(rows, len(_PART_COLUMNS))[np.array(places, dtype=np.int64)]
        of_strategies = np.array([OVERLAPS.index(strategy.overlap) for strategy in strategies], dtype=np.int64)
        first_message = _ends([len(strategy.messages) for strategy in strategies])
        of_messages = _columns(_table(messages, len(_MESSAGE_COLUMNS)))
        return Columns._make([of_strategies, first_message, *of_messages, _ends(num_parts), *_columns(parts)])

    def _with_cuts(self, partitions: Mapping[str, Partition], rows: list[int]) -> dict[str, int]:
        """Return where the rows of all parts are, by name; adds rows for the parts that variables are cut into."""
        places = dict(self._place_of)
        for name, partition in partitions.items():
            variable, begin, axis = places.pop(name), 0, partition.axis
            for index, size in enumerate(partition.sizes):
                places[f"{name}[{index}]"] = len(rows) // len(_PART_COLUMNS)
                rows += (variable, index, axis, begin, begin + size)
                begin += size
        return places

    def decode(self, columns: Columns) -> list[Strategy]:
        """Return the strategies of columns, without names and shares."""
        synchronisers, codecs = self.synchronisers, self.codecs
        parts = [getattr(columns, name).tolist() for name in _PART_COLUMNS]
        rows: list[_Row] = list(zip(*parts, strict=True))
        ends = columns.first_part.tolist()
        settings = zip(*[getattr(columns, name).tolist() for name in _MESSAGE_COLUMNS], strict=True)
        messages = [
            Message(
                parts=tuple([self._name(row) for row in rows[begin:end]]),
                synchroniser=synchronisers[synchroniser],
                codec=codecs[codec],
                priority=priority,
                lane=lane,
                slice_bytes=None if slice_bytes == NO_SLICES else slice_bytes,
            )
            for (begin, end), (synchroniser, codec, priority, lane, slice_bytes) in zip(
                itertools.pairwise(ends), settings, strict=True
            )
        ]
        firsts = itertools.pairwise(columns.first_message.tolist())
        return [
            Strategy(
                overlap=OVERLAPS[overlap],
                partitions=self._partitions(rows[ends[first] : ends[last]]),
                messages=tuple(messages[first:last]),
            )
            for overlap, (first, last) in zip(columns.overlap.tolist(), firsts, strict=True)
        ]

    def _name(self, row: _Row) -> str:
        variable, index = self._variables[row[0]].name, row[1]
        return str(PartName(variable) if index == WHOLE else PartName(variable, index, whole=False))

    def _partitions(self, rows: Iterable[_Row]) -> dict[str, Partition]:
        found: dict[int, list[_Row]] = {}
        for row in rows:
            if row[1] != WHOLE:
                found.setdefault(row[0], []).append(row)
        return {
            self._variables[variable].name: Partition(
                axis=cut[0][2], sizes=tuple([end - begin for _, _, _, begin, end in sorted(cut)])
            )
            for variable, cut in sorted(found.items())
        }


def _ends(lengths: Sequence[int]) -> Integers:
    """Return where rows of these lengths begin, and where the last one ends."""
    found = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=found[1:])
    return found


def _table(numbers: Sequence[int], num_columns: int) -> Integers:
    return np.array(numbers, dtype=np.int64).reshape(-1, num_columns)


def _columns(table: Integers) -> list[Integers]:
    return list(np.ascontiguousarray(table.T))
