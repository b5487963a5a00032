"""Gates, and whose updates are whose. Compiled.

Gates are those of `lowering`. Which updates are the engine's is as `runtime.updates` has it: all with forward overlap,
else those that not every worker makes, and what follows.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from autosync.plan.compiled.data import (
    BY_EVERY_WORKER,
    COLLECT,
    EVERYWHERE,
    FIRST_DONE,
    FIRST_MESSAGE,
    FIRST_PIECE,
    FIRST_SLICE,
    FORWARD,
    FROM,
    LIST,
    MESSAGE,
    NORM,
    NUM_ELEMENTS,
    NUM_LISTS,
    ONCE,
    OWN_NORM,
    PART,
    POSITION,
    TEMPLATE,
    TO,
    VARIABLE,
    WAIT,
    WAIT_LAG,
    WAIT_STEP,
    WAITS,
    Flags,
    Integers,
    Slices,
    Stamps,
    Templates,
)
from autosync.plan.tables import EVENTS, GATE_KINDS, Edges, Gates

_OPERATION = EVENTS.index("operation")
_BEFORE_USE = GATE_KINDS.index("before_use")
_RETURNS = (GATE_KINDS.index("backward_returns"), GATE_KINDS.index("step_returns"))
_ON_STEP = WAITS.index("step")

_compiled = numba.njit(cache=True, nogil=True)


class _Given(NamedTuple):
    """Tables that say what gates and users wait for."""

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
    done: Integers
    variables: Integers


def given_of(slices: Slices, templates: Templates, stamps: Stamps, variables: Integers) -> _Given:
    """What is known of a batch, as this file's functions are given it."""
    return _Given(
        *stamps, *slices, templates=templates.table, lists=templates.lists, done=templates.done, variables=variables
    )


def gates_of(given: _Given) -> tuple[Gates, Integers, Integers]:
    """The gates of a batch of plans; where those of each plan begin, and their edges."""
    is_forward, num_variables = given.strategies[:-1, FORWARD] == 1, len(given.variables)
    count = len(is_forward)
    first_gate = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.where(is_forward, num_variables, 2), out=first_gate[1:])
    first, first_edge = np.zeros(first_gate[-1] + count, dtype=np.int64), np.zeros(count + 1, dtype=np.int64)
    _gates(given, first, first_edge, np.empty((2, 0), dtype=np.int64))
    edges = np.empty((2, first_edge[-1]), dtype=np.int64)
    _gates(given, first, first_edge, edges)
    events = np.full(edges.shape[1], _OPERATION, dtype=np.int64)
    uses = np.arange(num_variables)
    kinds = [np.full(num_variables, _BEFORE_USE) if forward else np.array(_RETURNS) for forward in is_forward]
    about = [uses if forward else np.array((-1, -1)) for forward in is_forward]
    return Gates(_joined(kinds), _joined(about), Edges(first, events, *edges)), first_gate, first_edge


def _joined(columns: list[Integers]) -> Integers:
    return np.concatenate(columns).astype(np.int64, copy=False) if columns else np.zeros(0, dtype=np.int64)


@_compiled
def _gates(given: _Given, first: Integers, first_edge: Integers, edges: Integers) -> None:
    """Write targets and lags where there is room for them; else only where they begin."""
    num_variables, row = len(given.variables), 0
    for number in range(len(given.first) - 1):
        if given.strategies[number, FORWARD]:
            ends = first[row : row + num_variables + 1]
            _gate_uses(given, number, ends, first_edge[number], edges)
        else:
            ends = first[row : row + 3]
            _gate_returns(given, number, ends, first_edge[number], edges)
        first_edge[number + 1] = first_edge[number] + ends[-1]
        row += len(ends)


@_compiled
def _put(edges: Integers, at: int, target: int, lag: int) -> int:
    """One more edge; where the next one goes."""
    if edges.shape[1]:
        edges[0, at], edges[1, at] = target, lag
    return at + 1


@_compiled
def _settles(given: _Given, stamp: Integers) -> bool:
    """Whether it brings parameters home."""
    of_list = stamp[LIST]
    return of_list < len(given.templates) * NUM_LISTS and COLLECT < of_list % NUM_LISTS < NORM


@_compiled
def _done(given: _Given, stamp: Integers) -> Integers:
    """What must be over until all is done that a stamp does."""
    of_list = stamp[LIST]
    return given.done[given.lists[of_list, FIRST_DONE] : given.lists[of_list + 1, FIRST_DONE]]


@_compiled
def _gate_returns(given: _Given, number: int, ends: Integers, at: int, edges: Integers) -> None:
    """Backward returns when gradients are finished that all workers have, the step when all is brought home."""
    begin = at
    for message in range(given.strategies[number, FIRST_MESSAGE], given.strategies[number + 1, FIRST_MESSAGE]):
        template = given.messages[message, TEMPLATE]
        of_list = template * NUM_LISTS + COLLECT
        finished = given.done[given.lists[of_list, FIRST_DONE] : given.lists[of_list + 1, FIRST_DONE]]
        if given.templates[template, EVERYWHERE] and finished[0, WAIT] == _ON_STEP:
            for one in range(given.messages[message, FIRST_SLICE], given.messages[message + 1, FIRST_SLICE]):
                for done in finished:
                    at = _put(edges, at, given.collected[one] + done[WAIT_STEP], done[WAIT_LAG])
    ends[1] = at - begin
    for stamp in given.stamps[given.first[number] : given.first[number + 1]]:
        if _settles(given, stamp):
            for done in _done(given, stamp):
                at = _put(edges, at, stamp[POSITION] + done[WAIT_STEP], done[WAIT_LAG])
    ends[2] = at - begin


@_compiled
def _gate_uses(given: _Given, number: int, ends: Integers, begin: int, edges: Integers) -> None:
    """Each variable is used when what was sent of it in the last step is home."""
    is_counted = edges.shape[1] > 0
    place = begin + ends[:-1] if is_counted else np.zeros(len(ends) - 1, np.int64)
    first, last = 0, 0
    for stamp in given.stamps[given.first[number] : given.first[number + 1]]:
        if not _settles(given, stamp):
            continue
        if stamp[LIST] % NUM_LISTS == ONCE:
            # What is done for each slice of a round is waited for by all that use some of the round.
            first, last = given.slices[stamp[FROM], FIRST_PIECE], given.slices[stamp[TO], FIRST_PIECE]
        before = -1
        for piece in range(first, last):
            variable = given.parts[given.pieces[piece, PART], VARIABLE]
            if variable != before:
                before = variable
                for done in _done(given, stamp):
                    target = stamp[POSITION] + done[WAIT_STEP]
                    place[variable] = _put(edges, place[variable], target, done[WAIT_LAG] + 1)
    if not is_counted:
        for variable in range(len(place)):
            ends[variable + 1] = ends[variable] + place[variable]


# Whose updates are whose.


def users_of(given: _Given, *, has_norms: bool) -> tuple[Flags, Integers]:
    """By operation, whether it is an update by the user's optimizer; by strategy, of how many elements these are."""
    by_users = np.zeros(given.first_operation[-1], dtype=np.bool_)
    users_elements = np.zeros(len(given.first) - 1, dtype=np.int64)
    _tell_users(given, has_norms, by_users, users_elements)
    return by_users, users_elements


@_compiled
def _tell_users(given: _Given, has_norms: bool, by_users: Flags, users_elements: Integers) -> None:
    """With forward overlap there are none."""
    is_ours = np.empty(len(given.variables), np.bool_)
    updates, update_is_ours = np.empty(len(given.amounts), np.int64), np.empty(len(given.amounts), np.bool_)
    for number in range(len(given.first) - 1):
        if given.strategies[number, FORWARD]:
            continue
        is_ours[:] = False
        count = _begin(given, number, has_norms, updates, update_is_ours)
        grows = True
        while grows:
            grows = False
            for one in range(count):
                if update_is_ours[one] or _has_one(given, given.stamps[updates[one]], is_ours):
                    grows |= _claim(given, given.stamps[updates[one]], is_ours)
                    update_is_ours[one] = True
        for one in range(count):
            position = given.first_operation[number] + given.stamps[updates[one], POSITION]
            by_users[position] = not update_is_ours[one]
        for variable in range(len(is_ours)):
            if not is_ours[variable]:
                users_elements[number] += given.variables[variable, NUM_ELEMENTS]


@_compiled
def _begin(given: _Given, number: int, has_norms: bool, updates: Integers, is_ours: Flags) -> int:
    """Updates that not every worker makes; all, where clipping or scaling joins them or norms are of two kinds."""
    count, some, own, shared = 0, False, False, False
    for place in range(given.first[number], given.first[number + 1]):
        stamp = given.stamps[place]
        if _settles(given, stamp) and stamp[LIST] % NUM_LISTS == ONCE:
            template = given.templates[given.messages[stamp[MESSAGE], TEMPLATE]]
            updates[count], is_ours[count] = place, template[BY_EVERY_WORKER] == 0
            some |= is_ours[count]
            own |= template[OWN_NORM] != 0
            shared |= template[OWN_NORM] == 0
            count += 1
    if has_norms and (some or (own and shared)):
        is_ours[:count] = True
    return count


@_compiled
def _has_one(given: _Given, stamp: Integers, is_ours: Flags) -> bool:
    """Whether one of the variables that it updates is the engine's."""
    for piece in range(given.slices[stamp[FROM], FIRST_PIECE], given.slices[stamp[TO], FIRST_PIECE]):
        if is_ours[given.parts[given.pieces[piece, PART], VARIABLE]]:
            return True
    return False


@_compiled
def _claim(given: _Given, stamp: Integers, is_ours: Flags) -> bool:
    """Make all of its variables the engine's; whether some were not."""
    is_new = False
    for piece in range(given.slices[stamp[FROM], FIRST_PIECE], given.slices[stamp[TO], FIRST_PIECE]):
        variable = given.parts[given.pieces[piece, PART], VARIABLE]
        is_new |= not is_ours[variable]
        is_ours[variable] = True
    return is_new
