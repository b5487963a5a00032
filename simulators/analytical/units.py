"""Turns columns of strategies into units. Compiled.

Parts are visited in the order in which their gradients become ready, as in the lowering. A message's slices fill up one
after the other. A message of more than `MAX_UNITS` slices has at most `MAX_UNITS` units of several slices each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autosync.simulators.analytical.tables import ELEMENTS, MEASURES, PIECE, STRATEGY, UNIT, Units
from autosync.simulators.jit import borrows, borrows_inner, inlined
from autosync.simulators.shared.arrays import Floats, Integers, Record, Records
from autosync.strategy.columns import NO_SLICES, OVERLAPS, Columns

MAX_UNITS = 4
_FORWARD = OVERLAPS.index("forward")
_NUM_MEASURES = len(MEASURES)

_DRAFT = np.dtype(
    [
        ("elements", np.int64),
        ("limit", np.int64),
        ("full", np.int64),
        ("filled", np.int64),
        ("head", np.int64),
        ("tail", np.int64),
    ]
)
"""A message whose units are being filled.

`elements` are not in a unit yet. A slice has `limit` elements and a unit `full`. The current unit has `filled` so far,
in the pieces from `head` to `tail`.
"""
_PIECE = np.dtype([("part", np.int64), ("until", np.int64), ("next", np.int64)])
"""A piece: its part, the unit's elements up to the piece's end, and the next piece."""


class VariableSizes(NamedTuple):
    """The sizes of a model's variables.

    For each: the elements of a row along each axis, the bytes of an element, and its position in the order in which
    gradients become ready.
    """

    row_elements: Integers
    item_bytes: Integers
    place: Integers


class PartFacts(NamedTuple):
    """Further facts about strategies.

    `template` has the template of each message. `row` has, for each part that needs more measures than its elements,
    its row of `measured`; -1 for the others.
    """

    template: Integers
    row: Integers
    measured: Floats


class _Scratch(NamedTuple):
    """Scratch space: the parts of a strategy in order, a bucket for each variable, and pieces of unfinished units."""

    order: Integers
    bucket: Integers
    pieces: Records


def units_of(columns: Columns, variables: VariableSizes, wanted: PartFacts) -> Units:
    """Return the units of strategies."""
    rows = columns.end - columns.begin
    elements = rows * variables.row_elements[columns.variable, columns.axis]
    drafts, strategies = np.empty(len(columns.lane), _DRAFT), np.empty(len(columns.overlap), STRATEGY)
    num_units = _begin(columns, variables, elements, drafts, strategies)
    most_parts = int(strategies["num_parts"].max(initial=0))
    made = Units(
        strategies=strategies,
        units=np.empty(num_units, UNIT),
        amount=np.zeros((num_units, _NUM_MEASURES)),
        # The largest possible number: one for each part, and one more wherever a unit ends within a part.
        pieces=np.empty(num_units + len(elements), PIECE),
    )
    scratch = _Scratch(
        order=np.empty(most_parts, np.int64),
        bucket=np.empty(len(variables.place) + 1, np.int64),
        pieces=np.empty(most_parts + num_units + 1, _PIECE),
    )
    message_of = np.repeat(np.arange(len(drafts)), np.diff(columns.first_part[: len(drafts) + 1]))
    _fill_all(columns, variables, wanted, made, _Parts(elements, message_of, drafts), scratch)
    return made


class _Parts(NamedTuple):
    """The elements and the message of each part, and the messages whose units are being filled."""

    elements: Integers
    message: Integers
    drafts: Records


@borrows
def _begin(columns: Columns, variables: VariableSizes, elements: Integers, drafts: Records, strategies: Records) -> int:
    """Enter every message before its first unit, and the strategies; return the number of units."""
    num_units = 0
    for message in range(len(drafts)):
        draft = drafts[message]
        first = columns.first_part[message]
        draft.elements = 0
        for part in range(first, columns.first_part[message + 1]):
            draft.elements += elements[part]
        draft.limit = draft.full = draft.elements
        item_bytes, slice_bytes = variables.item_bytes[columns.variable[first]], columns.slice_bytes[message]
        if slice_bytes != NO_SLICES and slice_bytes < draft.elements * item_bytes:
            draft.limit = max(1, slice_bytes // item_bytes)
            num_slices = -(-draft.elements // draft.limit)
            draft.full = draft.limit * -(-num_slices // MAX_UNITS)
        draft.filled = 0
        draft.head = draft.tail = -1
        num_units += -(-draft.elements // draft.full)
    for number in range(len(strategies)):
        strategy = strategies[number]
        first, last = columns.first_message[number], columns.first_message[number + 1]
        strategy.forward = columns.overlap[number] == _FORWARD
        strategy.num_messages = last - first
        strategy.num_parts = columns.first_part[last] - columns.first_part[first]
        strategy.num_lanes = 1
        for message in range(first, last):
            strategy.num_lanes = max(strategy.num_lanes, columns.lane[message] + 1)
    return num_units


@borrows
def _fill_all(  # noqa: PLR0917 - numba has no keywords
    columns: Columns, variables: VariableSizes, wanted: PartFacts, made: Units, parts: _Parts, scratch: _Scratch
) -> None:
    num_done = 0
    for number in range(len(made.strategies)):
        _sort(columns, variables, number, scratch.order, scratch.bucket)
        made.strategies[number].first_unit = num_done
        num_done = _fill(columns, variables, wanted, made, number, parts, scratch)
        made.strategies[number].last_unit = num_done


@borrows_inner
def _sort(columns: Columns, variables: VariableSizes, number: int, order: Integers, bucket: Integers) -> None:
    """Sort a strategy's parts by when their gradients become ready, and those of one variable by index."""
    begin = columns.first_part[columns.first_message[number]]
    num_parts = columns.first_part[columns.first_message[number + 1]] - begin
    variable_of, index_of, place_of = columns.variable, columns.number, variables.place
    bucket[:] = 0
    order[:num_parts] = -1
    for part in range(begin, begin + num_parts):
        bucket[place_of[variable_of[part]] + 1] += 1
    for place in range(len(bucket) - 1):
        bucket[place + 1] += bucket[place]
    for part in range(begin, begin + num_parts):
        variable, index = variable_of[part], index_of[part]
        place = bucket[place_of[variable]]
        bucket[place_of[variable]] += 1
        while place > 0 and order[place - 1] >= 0:
            if variable_of[order[place - 1]] != variable or index_of[order[place - 1]] < index:
                break
            order[place] = order[place - 1]
            place -= 1
        order[place] = part


@borrows_inner
def _fill(  # noqa: PLR0917 - one loop: calls with arrays would take most of the time
    columns: Columns,
    variables: VariableSizes,
    wanted: PartFacts,
    made: Units,
    number: int,
    parts: _Parts,
    scratch: _Scratch,
) -> int:
    """Fill the units of messages with parts and write each unit when it is full; return the number of units."""
    units, amounts, elements, pieces = made.units, made.amount, parts.elements, scratch.pieces
    num_done = int(made.strategies[number].first_unit)
    first_message = columns.first_message[number]
    variable_of = columns.variable
    num_pieces = 0
    place = units[num_done - 1].last_piece if num_done > 0 else 0
    for position in range(made.strategies[number].num_parts):
        part = scratch.order[position]
        message, left = parts.message[part], elements[part]
        draft = parts.drafts[message]
        while left > 0:
            taken = min(left, min(draft.full, draft.elements) - draft.filled)
            left -= taken
            draft.filled += taken
            piece = pieces[num_pieces]
            piece.part, piece.until, piece.next = part, draft.filled, -1
            if draft.head < 0:
                draft.head = num_pieces
            else:
                pieces[draft.tail].next = num_pieces
            draft.tail = num_pieces
            num_pieces += 1
            if draft.filled < min(draft.full, draft.elements):
                continue
            unit = units[num_done]
            unit.message, unit.template = message - first_message, wanted.template[message]
            unit.lane, unit.priority = columns.lane[message], columns.priority[message]
            unit.num_slices = -(-draft.filled // draft.limit)
            unit.item_bytes = variables.item_bytes[variable_of[columns.first_part[message]]]
            amounts[num_done, ELEMENTS] = draft.filled
            unit.first_piece = place
            place = _write_pieces(columns, wanted, made, elements, pieces, draft, num_done, place)
            unit.last_piece = place
            num_done += 1
            draft.elements -= draft.filled
            draft.filled = 0
            draft.head = -1
    return num_done


@inlined
def _write_pieces(  # noqa: PLR0917 - numba has no keywords
    columns: Columns,
    wanted: PartFacts,
    made: Units,
    elements: Integers,
    pieces: Records,
    draft: Record,
    number: int,
    place: int,
) -> int:
    """Write the pieces of a full unit from `place` on, and add their measures; return the place after the last."""
    at, before = draft.head, 0
    while at >= 0:
        piece = pieces[at]
        made.pieces[place].variable = columns.variable[piece.part]
        made.pieces[place].until = piece.until / draft.filled
        row = wanted.row[piece.part]
        if row >= 0:
            share = (piece.until - before) / elements[piece.part]
            for measure in range(_NUM_MEASURES):
                if measure != ELEMENTS:
                    made.amount[number, measure] += wanted.measured[row, measure] * share
        place, at, before = place + 1, piece.next, piece.until
    return int(place)
