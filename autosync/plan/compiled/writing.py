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
_ON_NORM, _ON_UPDATED = WAITS.index("norm"), WAITS.index("updated")
_NONE = -1

_compiled = numba.njit(cache=True, nogil=True)


class _Given(NamedTuple):
    """Tables that say what is to be written."""

    stamps: Integers
    first: Integers
    first_operation: Integers
    collected: Integers
    near: Integers
    strategies: Integers
    messages: Integers
    slices: Integers
    pieces: Integers
    parts: Integers
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
        *stamps,
        *slices,
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


@_compiled
def _write(given: _Given, table: Integers) -> None:
    """All of operations but their edges."""
    at = 0
    for number in range(len(given.first) - 1):
        num_lanes, first_message = given.strategies[number, NUM_LANES], given.strategies[number, FIRST_MESSAGE]
        for stamp in given.stamps[given.first[number] : given.first[number + 1]]:
            message = given.messages[stamp[MESSAGE]]
            of_list, begin, end = stamp[LIST], stamp[FROM], stamp[TO]
            for step in given.steps[given.lists[of_list, FIRST_STEP] : given.lists[of_list + 1, FIRST_STEP]]:
                amount = 0
                for one in range(begin, end):
                    amount += given.amounts[one, step[MEASURE]]
                is_transfer = step[IS_TRANSFER] != 0
                item_bytes = step[STEP_BYTES] if step[STEP_BYTES] != 0 else message[MESSAGE_BYTES]
                table[0, at], table[1, at], table[2, at] = step[IS_TRANSFER], step[KIND], step[ALGORITHM]
                table[3, at], table[4, at], table[5, at] = step[SHAPE], step[FACTOR] * amount, item_bytes
                table[6, at] = message[LANE] + step[STAGE] * num_lanes if is_transfer else _NONE
                table[7, at] = message[PRIORITY] if is_transfer else _NONE
                table[8, at], table[9, at] = stamp[MESSAGE] - first_message, step[EVERY]
                table[10, at], table[11, at] = step[COST], step[SHARDED]
                at += 1


@_compiled
def _edges(given: _Given, first: Integers, first_edge: Integers, edges: Integers) -> None:
    """Write edges where there is room for them; else only where they begin."""
    at, row = 0, 0
    for number in range(len(given.first) - 1):
        begin = at
        row += 1
        for stamp in given.stamps[given.first[number] : given.first[number + 1]]:
            of_list = stamp[LIST]
            for step in range(given.lists[of_list, FIRST_STEP], given.lists[of_list + 1, FIRST_STEP]):
                for wait in given.waits[given.steps[step, FIRST_WAIT] : given.steps[step + 1, FIRST_WAIT]]:
                    at = _wait(given, stamp, wait, edges, at)
                first[row] = at - begin
                row += 1
        first_edge[number + 1] = at


@_compiled
def _put(edges: Integers, at: int, event: int, target: int, lag: int) -> int:
    """One more edge; where the next one goes."""
    if edges.shape[1]:
        edges[0, at], edges[1, at], edges[2, at] = event, target, lag
    return at + 1


@_compiled
def _wait(given: _Given, stamp: Integers, wait: Integers, edges: Integers, at: int) -> int:
    """The edges that a wait stands for; where the next one goes."""
    on = wait[WAIT]
    if on == _ON_STEP:
        return _put(edges, at, _OPERATION, stamp[POSITION] + wait[WAIT_STEP], wait[WAIT_LAG])
    if on == _ON_GRADIENTS:
        return _gradients(given, stamp, edges, at)
    if on == _ON_COLLECTED:
        return _collected(given, stamp, edges, at)
    if on == _ON_UPDATED:
        of_list = given.messages[stamp[MESSAGE], TEMPLATE] * NUM_LISTS + ONCE
        for done in given.done[given.lists[of_list, FIRST_DONE] : given.lists[of_list + 1, FIRST_DONE]]:
            at = _put(edges, at, _OPERATION, stamp[ROUND_AT] + done[WAIT_STEP], done[WAIT_LAG])
        return at
    if on == _ON_NORM:
        return _norm(given, stamp, edges, at)
    return _put(edges, at, _STEP_CALLED, _NONE, 0)


@_compiled
def _gradients(given: _Given, stamp: Integers, edges: Integers, at: int) -> int:
    """The gradients that pieces are cut from, each once: pieces of a variable follow one another."""
    before = _NONE
    for piece in range(given.slices[stamp[FROM], FIRST_PIECE], given.slices[stamp[TO], FIRST_PIECE]):
        variable = given.parts[given.pieces[piece, PART], VARIABLE]
        if variable != before:
            at = _put(edges, at, _GRAD_READY, variable, 0)
            before = variable
    return at


@_compiled
def _collected(given: _Given, stamp: Integers, edges: Integers, at: int) -> int:
    """What finishes the gradients of slices: operations or, where there is nothing to do, the gradients themselves."""
    of_list = given.messages[stamp[MESSAGE], TEMPLATE] * NUM_LISTS + COLLECT
    finished = given.done[given.lists[of_list, FIRST_DONE] : given.lists[of_list + 1, FIRST_DONE]]
    if finished[0, WAIT] == _ON_GRADIENTS:
        return _gradients(given, stamp, edges, at)
    for one in range(stamp[FROM], stamp[TO]):
        for done in finished:
            at = _put(edges, at, _OPERATION, given.collected[one] + done[WAIT_STEP], done[WAIT_LAG])
    return at


@_compiled
def _norm(given: _Given, stamp: Integers, edges: Integers, at: int) -> int:
    """Of an update: the norm that it waits for, if any; of a norm: those before it."""
    of_list = stamp[LIST]
    if of_list < len(given.templates) * NUM_LISTS and of_list % NUM_LISTS < NORM:
        return at if stamp[NORM_AT] == _NONE else _put(edges, at, _OPERATION, stamp[NORM_AT], 0)
    for place in range(stamp[NORM_AT], stamp[ROUND_AT]):
        at = _put(edges, at, _OPERATION, given.near[place], 0)
    return at
