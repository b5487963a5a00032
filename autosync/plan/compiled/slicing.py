"""Makes legal strategies canonical and cuts them into slices, in compiled code.

It applies the rules of `strategy.canonical` from the fifth on. The first four concern synchronisers alone and were
applied when templates were made.
"""

from __future__ import annotations

import numpy as np

from autosync.plan.compiled.data import (
    AXIS,
    BEGIN,
    END,
    FIRST_MESSAGE,
    FIRST_PIECE,
    FIRST_SLICE,
    FORWARD,
    ITEM_BYTES,
    JOINS,
    LANE,
    MESSAGE_BYTES,
    NUM_ELEMENTS,
    NUM_LANES,
    NUM_MEASURES,
    PART,
    PART_ELEMENTS,
    PIECE_ELEMENTS,
    PRIORITY,
    READY,
    ROWS,
    SLICE_ELEMENTS,
    SLICE_READY,
    SLICE_USE,
    TEMPLATE,
    USE,
    VARIABLE,
    Integers,
    Slices,
    Templates,
    Variables,
)
from autosync.plan.compiled.jit import called, inner
from autosync.strategy.columns import NO_SLICES, OVERLAPS, Columns

_FORWARD = OVERLAPS.index("forward")


def slices_of(
    columns: Columns, of_message: Integers, templates: Templates, variables: Variables, num_workers: int
) -> Slices:
    """Return the slices of a batch, not yet measured; `of_message` has each message's template, in written order."""
    table, variable = variables.table, columns.variable
    axis_size = variables.axis_size[variables.first_axis[variable] + columns.axis]
    elements = table[variable, NUM_ELEMENTS] // axis_size * (columns.end - columns.begin)
    limit, num_slices = _limits(columns, elements, table, num_workers)
    num_messages, num_parts = len(of_message), len(variable)
    found = Slices(
        strategies=np.zeros((len(columns.overlap) + 1, 3), dtype=np.int64),
        messages=np.zeros((num_messages + 1, 5), dtype=np.int64),
        slices=np.zeros((num_slices + 1, 4), dtype=np.int64),
        # A piece ends where a part or a slice ends.
        pieces=np.empty((num_parts + num_slices, 2), dtype=np.int64),
        parts=np.empty((num_parts, 5), dtype=np.int64),
        amounts=np.zeros((num_slices, NUM_MEASURES + 1), dtype=np.int64),
    )
    found.strategies[:, FIRST_MESSAGE] = columns.first_message
    found.strategies[:-1, FORWARD] = columns.overlap == _FORWARD
    messages, first_part, parts = _order(variable, columns.number, columns.first_message, columns.first_part, table)
    found.messages[:-1, TEMPLATE] = of_message[messages]
    _number(columns.lane[messages], columns.priority[messages], found.strategies, found.messages)
    rows = np.stack((variable, columns.axis, columns.begin, columns.end, elements), axis=1)[parts]
    joins = templates.table[found.messages[:-1, TEMPLATE], JOINS]
    first_part = _join(rows, first_part, joins, found.strategies, table, found.parts)
    num_pieces = _cut(found.parts, first_part, limit[messages], table, found.messages, found.slices, found.pieces)
    return found._replace(pieces=found.pieces[:num_pieces], parts=found.parts[: first_part[-1]])


def _limits(columns: Columns, elements: Integers, variables: Integers, num_workers: int) -> tuple[Integers, int]:
    """Return how many elements the slices of each message have, and the number of all slices.

    With one worker nothing is sent, so nothing is sliced. A slice size not smaller than the message has no effect.
    """
    if not len(columns.lane):
        return columns.lane, 0
    totals = np.add.reduceat(elements, columns.first_part[:-1])
    item_bytes = variables[columns.variable[columns.first_part[:-1]], ITEM_BYTES]
    is_sliced = (columns.slice_bytes != NO_SLICES) & (columns.slice_bytes < totals * item_bytes) & (num_workers > 1)
    limit = np.where(is_sliced, np.maximum(1, columns.slice_bytes // item_bytes), totals)
    return limit, int(np.sum(-(-totals // limit)))


@called
def _order(
    variable: Integers, of_part: Integers, first_message: Integers, first_part: Integers, variables: Integers
) -> tuple[Integers, Integers, Integers]:
    """Sort parts by the order in which gradients become ready, and messages by their first part.

    Returns the messages, where the parts of each begin, and the parts.
    """
    messages, parts = np.empty(len(first_part) - 1, np.int64), np.empty(len(variable), np.int64)
    ends, begins = np.zeros(len(first_part), np.int64), np.empty(len(first_part), np.int64)
    in_order, of_message = np.empty(len(variable), np.int64), np.empty(len(variable), np.int64)
    bucket = np.empty(len(variables) + 1, np.int64)
    for number in range(len(first_message) - 1):
        first, last = first_message[number], first_message[number + 1]
        begin, end = first_part[first], first_part[last]
        for message in range(first, last):
            begins[message] = -1
            for part in range(first_part[message], first_part[message + 1]):
                of_message[part] = message
        # The parts of a variable take consecutive places, in the order of their numbers.
        bucket[:] = 0
        for part in range(begin, end):
            bucket[variables[variable[part], READY] + 1] += 1
        for ready in range(len(variables)):
            bucket[ready + 1] += bucket[ready]
        for part in range(begin, end):
            in_order[begin + bucket[variables[variable[part], READY]] + max(0, of_part[part])] = part
        place = first
        for position in range(begin, end):
            message = of_message[in_order[position]]
            if begins[message] < 0:
                messages[place], begins[message] = message, ends[place]
                ends[place + 1] = ends[place] + first_part[message + 1] - first_part[message]
                place += 1
        for position in range(begin, end):
            message = of_message[in_order[position]]
            parts[begins[message]] = in_order[position]
            begins[message] += 1
    return messages, ends, parts


@called
def _number(lane: Integers, priority: Integers, strategies: Integers, messages: Integers) -> None:
    """Number lanes by first appearance and priorities by rank; with one lane all priorities are 0."""
    numbers = np.empty(1 + (lane.max() if len(lane) else 0), np.int64)
    levels = np.empty(len(lane) + 1, np.int64)
    for number in range(len(strategies) - 1):
        first, last = strategies[number, FIRST_MESSAGE], strategies[number + 1, FIRST_MESSAGE]
        numbers[:] = -1
        num_lanes, num_levels = 0, 0
        for message in range(first, last):
            if numbers[lane[message]] < 0:
                numbers[lane[message]] = num_lanes
                num_lanes += 1
            messages[message, LANE] = numbers[lane[message]]
            place = _place(levels, num_levels, priority[message])
            if place == num_levels or levels[place] != priority[message]:
                for level in range(num_levels, place, -1):
                    levels[level] = levels[level - 1]
                levels[place] = priority[message]
                num_levels += 1
        strategies[number, NUM_LANES] = num_lanes
        for message in range(first, last if num_lanes > 1 else first):
            messages[message, PRIORITY] = _place(levels, num_levels, priority[message])


@inner
def _place(levels: Integers, count: int, level: int) -> int:
    """Return how many of the first `count` levels, which are sorted, are below this one."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if levels[middle] < level:
            low = middle + 1
        else:
            high = middle
    return low


@called
def _join(
    rows: Integers,
    first_part: Integers,
    joins: Integers,
    strategies: Integers,
    variables: Integers,
    parts: Integers,
) -> Integers:
    """Write parts in order, joining all parts of a variable where allowed; return where each message's parts begin."""
    ends, num_parts = np.zeros(len(first_part), np.int64), np.empty(len(variables), np.int64)
    place = 0
    for number in range(len(strategies) - 1):
        first, last = strategies[number, FIRST_MESSAGE], strategies[number + 1, FIRST_MESSAGE]
        num_parts[:] = 0
        for part in range(first_part[first], first_part[last]):
            num_parts[rows[part, VARIABLE]] += 1
        for message in range(first, last):
            part, end = first_part[message], first_part[message + 1]
            while part < end:
                variable = rows[part, VARIABLE]
                count = num_parts[variable]
                # Column by column: a whole row at once would compile much more code, for errors that cannot occur.
                for column in range(rows.shape[1]):
                    parts[place, column] = rows[part, column]
                # If the variable's last part is in this message, all are: they stand side by side.
                is_home = part + count <= end and rows[part + count - 1, VARIABLE] == variable
                if is_home and (count == 1 or joins[message]):
                    parts[place, AXIS], parts[place, BEGIN], parts[place, END] = 0, 0, variables[variable, ROWS]
                    parts[place, PART_ELEMENTS] = variables[variable, NUM_ELEMENTS]
                    part += count
                else:
                    part += 1
                place += 1
            ends[message + 1] = place
    return ends


@called
def _cut(
    parts: Integers,
    first_part: Integers,
    limit: Integers,
    variables: Integers,
    messages: Integers,
    slices: Integers,
    pieces: Integers,
) -> int:
    """Cut messages into slices and return the number of pieces."""
    one, piece = -1, 0
    for message in range(len(limit)):
        left = 0
        messages[message, MESSAGE_BYTES] = variables[parts[first_part[message], VARIABLE], ITEM_BYTES]
        for part in range(first_part[message], first_part[message + 1]):
            variable, start = parts[part, VARIABLE], 0
            while start < parts[part, PART_ELEMENTS]:
                if left == 0:
                    one += 1
                    left = limit[message]
                    slices[one, SLICE_USE] = variables[variable, USE]
                taken = min(left, parts[part, PART_ELEMENTS] - start)
                pieces[piece, PART], pieces[piece, PIECE_ELEMENTS] = part, taken
                piece += 1
                slices[one + 1, FIRST_PIECE] = piece
                slices[one, SLICE_ELEMENTS] += taken
                slices[one, SLICE_READY] = variables[variable, READY]
                slices[one, SLICE_USE] = min(slices[one, SLICE_USE], variables[variable, USE])
                start, left = start + taken, left - taken
        messages[message + 1, FIRST_SLICE] = one + 1
    return piece
