"""Writes, in compiled code, the operations of stamps and their edges."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autosync.plan.compiled.data import (
    ALGORITHM,
    COLLECT,
    COST,
    EVERY,
    FACTOR,
    FIRST_DONE,
    FIRST_MESSAGE,
    FIRST_PIECE,
    FIRST_STEP,
    FIRST_WAIT,
    FROM,
    IS_TRANSFER,
    KIND,
    LANE,
    LIST,
    MEASURE,
    MESSAGE,
    MESSAGE_BYTES,
    NORM,
    NORM_AT,
    NUM_LANES,
    NUM_LISTS,
    ONCE,
    PART,
    POSITION,
    PRIORITY,
    ROUND_AT,
    SHAPE,
    SHARDED,
    STAGE,
    STEP_BYTES,
    TEMPLATE,
    TO,
    VARIABLE,
    WAIT,
    WAIT_LAG,
    WAIT_STEP,
    WAITS,
    Integers,
    Slices,
    Stamps,
    Templates,
)
from autosync.plan.compiled.jit import called
from autosync.plan.tables import EVENTS, Edges, Operations

_OPERATION, _GRAD_READY = EVENTS.index("operation"), EVENTS.index("grad_ready")
_STEP_CALLED = EVENTS.index("step_called")
_ON_STEP, _ON_GRADIENTS, _ON_COLLECTED = WAITS.index("step"), WAITS.index("gradients"), WAITS.index("collected")
_ON_NORM, _ON_STEP_CALLED, _ON_UPDATED = WAITS.index("norm"), WAITS.index("step_called"), WAITS.index("updated")
_NONE = -1


class _Given(NamedTuple):
    """The tables from which operations are written; `variable` has the variable of each piece."""

    stamps: Integers
    first: Integers
    collected: Integers
    near: Integers
    strategies: Integers
    messages: Integers
    slices: Integers
    variable: Integers
    amounts: Integers
    templates: Integers
    lists: Integers
    steps: Integers
    waits: Integers
    done: Integers


def operations_of(slices: Slices, templates: Templates, stamps: Stamps) -> tuple[Operations, Integers]:
    """Return the operations of a batch of plans, and where the edges of each plan begin."""
    count, num_operations = len(stamps.first) - 1, int(stamps.first_operation[-1])
    given = _Given(
        stamps=stamps.table,
        first=stamps.first,
        collected=stamps.collected,
        near=stamps.near,
        strategies=slices.strategies,
        messages=slices.messages,
        slices=slices.slices,
        variable=slices.parts[slices.pieces[:, PART], VARIABLE],
        amounts=slices.amounts,
        templates=templates.table,
        lists=templates.lists,
        steps=templates.steps,
        waits=templates.waits,
        done=templates.done,
    )
    table = np.empty((len(Operations._fields) - 1, num_operations), dtype=np.int64)
    _write(given, table)
    is_transfer, *others, sharded = table
    first, first_edge = np.zeros(num_operations + count, dtype=np.int64), np.zeros(count + 1, dtype=np.int64)
    _edges(given, first, first_edge, np.empty((3, 0), dtype=np.int64))
    edges = np.empty((3, first_edge[-1]), dtype=np.int64)
    _edges(given, first, first_edge, edges)
    return Operations._make([is_transfer == 1, *others, sharded == 1, Edges(first, *edges)]), first_edge


# Numba counts references whenever a table is taken out of a tuple or passed to a function, and makes an object of every
# row. So each loop takes its tables out of the tuple once, works with positions, and calls no function.


@called
def _write(given: _Given, table: Integers) -> None:
    """Write all columns of operations except their edges."""
    stamps, messages, lists, steps, amounts = given.stamps, given.messages, given.lists, given.steps, given.amounts
    at = 0
    for number in range(len(given.first) - 1):
        num_lanes, first_message = given.strategies[number, NUM_LANES], given.strategies[number, FIRST_MESSAGE]
        for stamp in range(given.first[number], given.first[number + 1]):
            message, of_list = stamps[stamp, MESSAGE], stamps[stamp, LIST]
            begin, end = stamps[stamp, FROM], stamps[stamp, TO]
            lane, priority, item_bytes = (
                messages[message, LANE],
                messages[message, PRIORITY],
                messages[message, MESSAGE_BYTES],
            )
            for step in range(lists[of_list, FIRST_STEP], lists[of_list + 1, FIRST_STEP]):
                amount = 0
                for one in range(begin, end):
                    amount += amounts[one, steps[step, MEASURE]]
                is_transfer = steps[step, IS_TRANSFER]
                table[0, at], table[1, at], table[2, at] = is_transfer, steps[step, KIND], steps[step, ALGORITHM]
                table[3, at], table[4, at] = steps[step, SHAPE], steps[step, FACTOR] * amount
                table[5, at] = steps[step, STEP_BYTES] if steps[step, STEP_BYTES] != 0 else item_bytes
                table[6, at] = lane + steps[step, STAGE] * num_lanes if is_transfer else _NONE
                table[7, at] = priority if is_transfer else _NONE
                table[8, at], table[9, at] = message - first_message, steps[step, EVERY]
                table[10, at], table[11, at] = steps[step, COST], steps[step, SHARDED]
                at += 1


@called
def _edges(given: _Given, first: Integers, first_edge: Integers, edges: Integers) -> None:  # noqa: C901, PLR0912 - see above
    """Write the edges of operations. If `edges` has no room, write only the beginnings of each operation's edges."""
    stamps, lists, steps, waits, done = given.stamps, given.lists, given.steps, given.waits, given.done
    first_stamp, slices, variables, collected = given.first, given.slices, given.variable, given.collected
    near, messages, num_lists = given.near, given.messages, len(given.templates) * NUM_LISTS
    writes, at, row, begin = edges.shape[1] > 0, 0, 0, 0
    for number in range(len(first_stamp) - 1):
        begin, row = at, row + 1
        for stamp in range(first_stamp[number], first_stamp[number + 1]):
            of_list, of_template = stamps[stamp, LIST], messages[stamps[stamp, MESSAGE], TEMPLATE] * NUM_LISTS
            for step in range(lists[of_list, FIRST_STEP], lists[of_list + 1, FIRST_STEP]):
                for wait in range(steps[step, FIRST_WAIT], steps[step + 1, FIRST_WAIT]):
                    on = waits[wait, WAIT]
                    asked = of_template + (ONCE if on == _ON_UPDATED else COLLECT)
                    place, last_place = lists[asked, FIRST_DONE], lists[asked + 1, FIRST_DONE]
                    if on in (_ON_STEP, _ON_STEP_CALLED):
                        if writes:
                            is_step = on == _ON_STEP
                            edges[0, at] = _OPERATION if is_step else _STEP_CALLED
                            edges[1, at] = stamps[stamp, POSITION] + waits[wait, WAIT_STEP] if is_step else _NONE
                            edges[2, at] = waits[wait, WAIT_LAG]
                        at += 1
                    elif on == _ON_NORM:
                        # An update waits for its norm, if any; a norm waits for the norms listed before it.
                        norm, is_norm = stamps[stamp, NORM_AT], of_list >= num_lists or of_list % NUM_LISTS >= NORM
                        for other in range(norm, stamps[stamp, ROUND_AT] if is_norm else norm + 1):
                            if is_norm or norm != _NONE:
                                if writes:
                                    edges[0, at], edges[1, at] = _OPERATION, near[other] if is_norm else norm
                                    edges[2, at] = 0
                                at += 1
                    elif on == _ON_GRADIENTS or done[place, WAIT] == _ON_GRADIENTS:
                        # One edge for each variable, whose pieces follow one another.
                        before = _NONE
                        for piece in range(
                            slices[stamps[stamp, FROM], FIRST_PIECE], slices[stamps[stamp, TO], FIRST_PIECE]
                        ):
                            if variables[piece] != before:
                                before = variables[piece]
                                if writes:
                                    edges[0, at], edges[1, at], edges[2, at] = _GRAD_READY, before, 0
                                at += 1
                    else:
                        # Wait for the operations that collect the slices, or for those done once in their round.
                        for one in range(stamps[stamp, FROM], stamps[stamp, TO]):
                            position = collected[one] if on == _ON_COLLECTED else stamps[stamp, ROUND_AT]
                            for other in range(place, last_place):
                                if writes:
                                    edges[0, at], edges[1, at] = _OPERATION, position + done[other, WAIT_STEP]
                                    edges[2, at] = done[other, WAIT_LAG]
                                at += 1
                first[row] = at - begin
                row += 1
        first_edge[number + 1] = at
