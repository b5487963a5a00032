"""From columns of strategies to their units. Compiled.

Parts are gone through in the order in which their gradients become ready, as the lowering does; a message's slices fill
up one after the other. A message of more slices than `MAX_UNITS` has that many units, of several slices each.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from autosync.simulators.analytical.tables import ELEMENTS, MEASURES, Floats, Integers, Units
from autosync.strategy.columns import NO_SLICES, OVERLAPS, Columns

MAX_UNITS = 8
_FORWARD = OVERLAPS.index("forward")
_NUM_MEASURES = len(MEASURES)

_compiled = numba.njit(cache=True)


class Variables(NamedTuple):
    """Of each variable of a model: the elements of one row along each axis, the bytes of an element, and its place in
    the order in which gradients become ready.
    """

    row_elements: Integers
    item_bytes: Integers
    place: Integers


class Wanted(NamedTuple):
    """What else is known of strategies: the template of each message; and of parts whose elements are not all that
    counts, a row of `measured` (`row`; -1: of no other).
    """

    template: Integers
    row: Integers
    measured: Floats


class _Drafts(NamedTuple):
    """Units as they are made, by message of a strategy: elements that are left, those of a slice, the slices of a unit;
    what is filled of it, in which pieces, and what they come to. Then pieces: the variable, the unit's elements up to
    its end, and the next one.
    """

    elements: Integers
    limit: Integers
    slices: Integers
    filled: Integers
    amount: Floats
    head: Integers
    tail: Integers
    variable: Integers
    until: Integers
    next: Integers


@_compiled
def units_of(columns: Columns, variables: Variables, wanted: Wanted) -> Units:
    """The units of strategies."""
    count = len(columns.overlap)
    num_units, num_pieces, most_messages, most_parts = _sizes(columns, variables)
    units = Units(
        first_unit=np.zeros(count + 1, np.int64),
        forward=columns.overlap == _FORWARD,
        num_lanes=np.ones(count, np.int64),
        num_messages=columns.first_message[1:] - columns.first_message[:-1],
        num_parts=columns.first_part[columns.first_message[1:]] - columns.first_part[columns.first_message[:-1]],
        message=np.empty(num_units, np.int64),
        template=np.empty(num_units, np.int64),
        lane=np.empty(num_units, np.int64),
        priority=np.empty(num_units, np.int64),
        num_slices=np.empty(num_units, np.int64),
        amount=np.zeros((num_units, _NUM_MEASURES)),
        item_bytes=np.empty(num_units),
        first_piece=np.zeros(num_units + 1, np.int64),
        variable=np.empty(num_pieces, np.int64),
        until=np.empty(num_pieces),
    )
    drafts = _drafts(most_messages, most_parts + MAX_UNITS * most_messages)
    bucket = np.empty(len(variables.place) + 1, np.int64)
    order = np.empty(most_parts, np.int64)
    message_of = np.empty(most_parts, np.int64)
    for number in range(count):
        units.first_unit[number + 1] = units.first_unit[number]
        _open(columns, variables, drafts, number, message_of)
        _sort(columns, variables, number, bucket, order)
        _fill(columns, variables, wanted, units, drafts, number, order, message_of)
    return units


@_compiled
def _sizes(columns: Columns, variables: Variables) -> tuple[int, int, int, int]:
    """Units and pieces of all strategies, the most messages and parts of one. More pieces than there will be."""
    num_units, most_messages, most_parts = 0, 0, 0
    for number in range(len(columns.overlap)):
        first, last = columns.first_message[number], columns.first_message[number + 1]
        most_messages = max(most_messages, last - first)
        most_parts = max(most_parts, columns.first_part[last] - columns.first_part[first])
    for message in range(len(columns.lane)):
        elements = _num_elements(columns, variables, message)
        limit, slices = _cut(columns, variables, message, elements)
        num_units += -(-elements // (limit * slices))
    return num_units, num_units + len(columns.variable), most_messages, most_parts


@_compiled
def _num_elements(columns: Columns, variables: Variables, message: int) -> int:
    elements = 0
    for part in range(columns.first_part[message], columns.first_part[message + 1]):
        elements += _elements(columns, variables, part)
    return elements


@_compiled
def _elements(columns: Columns, variables: Variables, part: int) -> int:
    rows = columns.end[part] - columns.begin[part]
    return int(rows * variables.row_elements[columns.variable[part], columns.axis[part]])


@_compiled
def _cut(columns: Columns, variables: Variables, message: int, elements: int) -> tuple[int, int]:
    """The elements of a slice, and how many slices a unit has."""
    item_bytes = variables.item_bytes[columns.variable[columns.first_part[message]]]
    slice_bytes = columns.slice_bytes[message]
    if slice_bytes == NO_SLICES or slice_bytes >= elements * item_bytes:
        return elements, 1
    limit = max(1, slice_bytes // item_bytes)
    num_slices = -(-elements // limit)
    return limit, -(-num_slices // MAX_UNITS)


@_compiled
def _drafts(num_messages: int, num_pieces: int) -> _Drafts:
    return _Drafts(
        elements=np.empty(num_messages, np.int64),
        limit=np.empty(num_messages, np.int64),
        slices=np.empty(num_messages, np.int64),
        filled=np.empty(num_messages, np.int64),
        amount=np.empty((num_messages, _NUM_MEASURES)),
        head=np.empty(num_messages, np.int64),
        tail=np.empty(num_messages, np.int64),
        variable=np.empty(num_pieces, np.int64),
        until=np.empty(num_pieces, np.int64),
        next=np.empty(num_pieces, np.int64),
    )


@_compiled
def _open(columns: Columns, variables: Variables, drafts: _Drafts, number: int, message_of: Integers) -> None:
    """Every message of a strategy begins its first unit."""
    first, last = columns.first_message[number], columns.first_message[number + 1]
    begin = columns.first_part[first]
    for message in range(first, last):
        here = message - first
        drafts.elements[here] = _num_elements(columns, variables, message)
        drafts.limit[here], drafts.slices[here] = _cut(columns, variables, message, drafts.elements[here])
        drafts.filled[here] = 0
        drafts.head[here] = -1
        drafts.amount[here] = 0.0
        for part in range(columns.first_part[message], columns.first_part[message + 1]):
            message_of[part - begin] = here


@_compiled
def _sort(columns: Columns, variables: Variables, number: int, bucket: Integers, order: Integers) -> None:
    """A strategy's parts in the order in which their gradients become ready, those of one variable by their index."""
    begin = columns.first_part[columns.first_message[number]]
    num_parts = columns.first_part[columns.first_message[number + 1]] - begin
    bucket[:] = 0
    order[:num_parts] = -1
    for part in range(num_parts):
        bucket[variables.place[columns.variable[begin + part]] + 1] += 1
    for place in range(len(bucket) - 1):
        bucket[place + 1] += bucket[place]
    for part in range(num_parts):
        variable, index = columns.variable[begin + part], columns.index[begin + part]
        place = bucket[variables.place[variable]]
        bucket[variables.place[variable]] += 1
        while place > 0 and order[place - 1] >= 0:
            before = begin + order[place - 1]
            if columns.variable[before] != variable or columns.index[before] < index:
                break
            order[place] = order[place - 1]
            place -= 1
        order[place] = part


@_compiled
def _fill(  # noqa: PLR0917 - numba has no keywords
    columns: Columns,
    variables: Variables,
    wanted: Wanted,
    units: Units,
    drafts: _Drafts,
    number: int,
    order: Integers,
    message_of: Integers,
) -> None:
    """Parts go into their messages' units, and these are done when they are full."""
    first = columns.first_message[number]
    begin, end = columns.first_part[first], columns.first_part[columns.first_message[number + 1]]
    piece = 0
    for position in range(end - begin):
        part = begin + order[position]
        here, elements = message_of[order[position]], _elements(columns, variables, part)
        left = elements
        while left > 0:
            full = min(drafts.limit[here] * drafts.slices[here], drafts.elements[here])
            taken = min(left, full - drafts.filled[here])
            left -= taken
            drafts.filled[here] += taken
            drafts.amount[here, ELEMENTS] += taken
            if wanted.row[part] >= 0:
                for measure in range(_NUM_MEASURES):
                    if measure != ELEMENTS:
                        drafts.amount[here, measure] += wanted.measured[wanted.row[part], measure] * taken / elements
            drafts.variable[piece], drafts.until[piece], drafts.next[piece] = (
                columns.variable[part],
                drafts.filled[here],
                -1,
            )
            if drafts.head[here] < 0:
                drafts.head[here] = piece
            else:
                drafts.next[drafts.tail[here]] = piece
            drafts.tail[here] = piece
            piece += 1
            if drafts.filled[here] == full:
                _finish(columns, variables, wanted, units, drafts, number, here)


@_compiled
def _finish(  # noqa: PLR0917 - numba has no keywords
    columns: Columns, variables: Variables, wanted: Wanted, units: Units, drafts: _Drafts, number: int, here: int
) -> None:
    """A unit is full."""
    unit, message = units.first_unit[number + 1], columns.first_message[number] + here
    units.first_unit[number + 1] += 1
    units.message[unit] = here
    units.template[unit] = wanted.template[message]
    units.lane[unit] = columns.lane[message]
    units.num_lanes[number] = max(units.num_lanes[number], columns.lane[message] + 1)
    units.priority[unit] = columns.priority[message]
    units.num_slices[unit] = -(-drafts.filled[here] // drafts.limit[here])
    units.amount[unit] = drafts.amount[here]
    units.item_bytes[unit] = variables.item_bytes[columns.variable[columns.first_part[message]]]
    place, piece = units.first_piece[unit], drafts.head[here]
    while piece >= 0:
        units.variable[place] = drafts.variable[piece]
        units.until[place] = drafts.until[piece] / drafts.filled[here]
        place, piece = place + 1, drafts.next[piece]
    units.first_piece[unit + 1] = place
    drafts.elements[here] -= drafts.filled[here]
    drafts.filled[here] = 0
    drafts.head[here] = -1
    drafts.amount[here] = 0.0
