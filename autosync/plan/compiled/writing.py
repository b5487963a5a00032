"""Stamps written out as operations with their edges. Compiled."""

from __future__ import annotations

from typing import NamedTuple

import numba
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
from autosync.plan.tables import EVENTS, Edges, Operations

_OPERATION, _GRAD_READY = EVENTS.index("operation"), EVENTS.index("grad_ready")
_STEP_CALLED = EVENTS.index("step_called")
_ON_STEP, _ON_GRADIENTS, _ON_COLLECTED = WAITS.index("step"), WAITS.index("gradients"), WAITS.index("collected")
_ON_NORM, _ON_STEP_CALLED = WAITS.index("norm"), WAITS.index("step_called")
_NONE = -1

_compiled = numba.njit(cache=True, nogil=True)


class _Given(NamedTuple):
    """Tables that say what is to be written; `variable` is that of each piece."""

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
    """The operations of a batch of plans, and where the edges of each plan begin."""
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


# Numba copies and counts references whenever a table is taken out of a tuple, and makes an object of every row: so each
# loop takes its tables out once, and goes by positions.


@_compiled
def _write(given: _Given, table: Integers) -> None:
    """All of operations but their edges."""
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


@_compiled
def _edges(given: _Given, first: Integers, first_edge: Integers, edges: Integers) -> None:
    """Write edges where there is room for them; else only where they begin."""
    stamps, lists, steps, waits = given.stamps, given.lists, given.steps, given.waits
    writes, at, row = edges.shape[1] > 0, 0, 0
    for number in range(len(given.first) - 1):
        begin = at
        row += 1
        for stamp in range(given.first[number], given.first[number + 1]):
            of_list = stamps[stamp, LIST]
            for step in range(lists[of_list, FIRST_STEP], lists[of_list + 1, FIRST_STEP]):
                for wait in range(steps[step, FIRST_WAIT], steps[step + 1, FIRST_WAIT]):
                    on = waits[wait, WAIT]
                    if on == _ON_STEP:
                        if writes:
                            target = stamps[stamp, POSITION] + waits[wait, WAIT_STEP]
                            edges[0, at], edges[1, at], edges[2, at] = _OPERATION, target, waits[wait, WAIT_LAG]
                        at += 1
                    elif on == _ON_STEP_CALLED:
                        if writes:
                            edges[0, at], edges[1, at], edges[2, at] = _STEP_CALLED, _NONE, 0
                        at += 1
                    elif on == _ON_GRADIENTS:
                        at = _gradients(stamps[stamp, FROM], stamps[stamp, TO], given.slices, given.variable, edges, at)
                    else:
                        at = _others(given, stamp, on, edges, at)
                first[row] = at - begin
                row += 1
        first_edge[number + 1] = at


@_compiled
def _gradients(begin: int, end: int, slices: Integers, variables: Integers, edges: Integers, at: int) -> int:
    """The gradients that pieces are cut from, each once: pieces of a variable follow one another."""
    before, writes = _NONE, edges.shape[1] > 0
    for piece in range(slices[begin, FIRST_PIECE], slices[end, FIRST_PIECE]):
        variable = variables[piece]
        if variable != before:
            if writes:
                edges[0, at], edges[1, at], edges[2, at] = _GRAD_READY, variable, 0
            before = variable
            at += 1
    return at


@_compiled
def _others(given: _Given, stamp: int, on: int, edges: Integers, at: int) -> int:
    """Edges that few operations have: to what slices are collected by, what is updated, norms."""
    stamps, done, writes = given.stamps, given.done, edges.shape[1] > 0
    of_list, begin, end = stamps[stamp, LIST], stamps[stamp, FROM], stamps[stamp, TO]
    if on == _ON_NORM:
        is_norm = of_list >= len(given.templates) * NUM_LISTS or of_list % NUM_LISTS >= NORM
        for place in range(stamps[stamp, NORM_AT], stamps[stamp, ROUND_AT] if is_norm else stamps[stamp, NORM_AT] + 1):
            target = given.near[place] if is_norm else place
            if target != _NONE:
                if writes:
                    edges[0, at], edges[1, at], edges[2, at] = _OPERATION, target, 0
                at += 1
        return at
    of_list = given.messages[stamps[stamp, MESSAGE], TEMPLATE] * NUM_LISTS + (COLLECT if on == _ON_COLLECTED else ONCE)
    first, last = given.lists[of_list, FIRST_DONE], given.lists[of_list + 1, FIRST_DONE]
    if done[first, WAIT] == _ON_GRADIENTS:
        return _gradients(begin, end, given.slices, given.variable, edges, at)
    for one in range(begin, end if on == _ON_COLLECTED else begin + 1):
        position = given.collected[one] if on == _ON_COLLECTED else stamps[stamp, ROUND_AT]
        for place in range(first, last):
            if writes:
                edges[0, at], edges[1, at] = _OPERATION, position + done[place, WAIT_STEP]
                edges[2, at] = done[place, WAIT_LAG]
            at += 1
    return at
