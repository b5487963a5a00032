"""Computes, in compiled code, a plan's gates, and which updates are made by the engine or by the user's optimizer.

The gates equal those of `lowering`. The engine makes the updates that `runtime.local.engine_updates` gives it: with
forward overlap all; else the updates that not every worker makes, and all updates tied to these by a variable or norm.
"""

from __future__ import annotations

from typing import NamedTuple

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
from autosync.plan.compiled.jit import called, inner
from autosync.plan.tables import EVENTS, GATE_KINDS, Edges, Gates

_OPERATION = EVENTS.index("operation")
_BEFORE_USE = GATE_KINDS.index("before_use")
_RETURNS = (GATE_KINDS.index("backward_returns"), GATE_KINDS.index("step_returns"))
_ON_STEP = WAITS.index("step")


class _Given(NamedTuple):
    """The tables from which gates and the user's updates are computed."""

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
    """Collect a batch's tables into the argument of this file's functions."""
    return _Given(
        *stamps, *slices, templates=templates.table, lists=templates.lists, done=templates.done, variables=variables
    )


def gates_of(given: _Given) -> tuple[Gates, Integers, Integers]:
    """Return the gates of a batch of plans, where each plan's gates begin, and where their edges begin."""
    is_forward, num_variables = given.strategies[:-1, FORWARD] == 1, len(given.variables)
    count = len(is_forward)
    first_gate = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.where(is_forward, num_variables, 2), out=first_gate[1:])
    first, first_edge = np.zeros(first_gate[-1] + count, dtype=np.int64), np.zeros(count + 1, dtype=np.int64)
    _gates(given, first, first_edge, np.empty((2, 0), dtype=np.int64))
    edges = np.empty((2, first_edge[-1]), dtype=np.int64)
    _gates(given, first, first_edge, edges)
    events = np.full(edges.shape[1], _OPERATION, dtype=np.int64)
    kind = np.full(first_gate[-1], _BEFORE_USE, dtype=np.int64)
    variable = np.arange(first_gate[-1]) - np.repeat(first_gate[:-1], np.diff(first_gate))
    for place, returns in enumerate(_RETURNS):
        of_returns = first_gate[:-1][~is_forward] + place
        kind[of_returns], variable[of_returns] = returns, -1
    return Gates(kind, variable, Edges(first, events, *edges)), first_gate, first_edge


@called
def _gates(given: _Given, first: Integers, first_edge: Integers, edges: Integers) -> None:
    """Write the gates' edges. If `edges` has no room, write only the positions where each gate's edges begin."""
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


@inner
def _settles(of_list: int, num_templates: int) -> bool:
    """Whether a stamp of this list of steps updates parameters or sends them back."""
    return of_list < num_templates * NUM_LISTS and COLLECT < of_list % NUM_LISTS < NORM


# Each loop takes its tables out of the tuple once and works with positions, as in `writing`.


@inner
def _gate_returns(given: _Given, number: int, ends: Integers, begin: int, edges: Integers) -> None:
    """Write both gates of a plan with backward overlap.

    Backward returns when the gradients that every worker holds are finished; `step()` returns when all parameters are
    updated and sent.
    """
    messages, stamps, lists, all_done = given.messages, given.stamps, given.lists, given.done
    collected, templates, writes, at = given.collected, given.templates, edges.shape[1] > 0, begin
    for message in range(given.strategies[number, FIRST_MESSAGE], given.strategies[number + 1, FIRST_MESSAGE]):
        template = messages[message, TEMPLATE]
        place, last = lists[template * NUM_LISTS, FIRST_DONE], lists[template * NUM_LISTS + 1, FIRST_DONE]
        if templates[template, EVERYWHERE] == 0 or all_done[place, WAIT] != _ON_STEP:
            continue
        for one in range(messages[message, FIRST_SLICE], messages[message + 1, FIRST_SLICE]):
            for done in range(place, last):
                if writes:
                    edges[0, at] = collected[one] + all_done[done, WAIT_STEP]
                    edges[1, at] = all_done[done, WAIT_LAG]
                at += 1
    ends[1] = at - begin
    for stamp in range(given.first[number], given.first[number + 1]):
        of_list = stamps[stamp, LIST]
        if _settles(of_list, len(templates)):
            for done in range(lists[of_list, FIRST_DONE], lists[of_list + 1, FIRST_DONE]):
                if writes:
                    edges[0, at] = stamps[stamp, POSITION] + all_done[done, WAIT_STEP]
                    edges[1, at] = all_done[done, WAIT_LAG]
                at += 1
    ends[2] = at - begin


@inner
def _gate_uses(given: _Given, number: int, ends: Integers, begin: int, edges: Integers) -> None:
    """Write a gate for each variable: its use waits until the last step has updated and sent it."""
    stamps, lists, all_done, slices = given.stamps, given.lists, given.done, given.slices
    pieces, parts, writes, num_templates = given.pieces, given.parts, edges.shape[1] > 0, len(given.templates)
    place = begin + ends[:-1] if writes else np.zeros(len(ends) - 1, np.int64)
    first, last = 0, 0
    for stamp in range(given.first[number], given.first[number + 1]):
        of_list = stamps[stamp, LIST]
        if not _settles(of_list, num_templates):
            continue
        if of_list % NUM_LISTS == ONCE:
            # Every variable of a round waits for the steps of each of the round's slices.
            first, last = slices[stamps[stamp, FROM], FIRST_PIECE], slices[stamps[stamp, TO], FIRST_PIECE]
        before, first_done, last_done = -1, lists[of_list, FIRST_DONE], lists[of_list + 1, FIRST_DONE]
        for piece in range(first, last):
            variable = parts[pieces[piece, PART], VARIABLE]
            if variable == before:
                continue
            before = variable
            for done in range(first_done, last_done):
                if writes:
                    edges[0, place[variable]] = stamps[stamp, POSITION] + all_done[done, WAIT_STEP]
                    edges[1, place[variable]] = all_done[done, WAIT_LAG] + 1
                place[variable] += 1
    if not writes:
        for variable in range(len(place)):
            ends[variable + 1] = ends[variable] + place[variable]


# Updates by the engine and by the user's optimizer.


def users_of(given: _Given, *, has_norms: bool) -> tuple[Flags, Integers]:
    """Return which operations are updates by the user's optimizer, and how many elements they change by strategy."""
    by_users = np.zeros(given.first_operation[-1], dtype=np.bool_)
    users_elements = np.zeros(len(given.first) - 1, dtype=np.int64)
    _tell_users(given, has_norms, by_users, users_elements)
    return by_users, users_elements


@called
def _tell_users(given: _Given, has_norms: bool, by_users: Flags, users_elements: Integers) -> None:
    """Mark the updates by the user's optimizer; with forward overlap there are none."""
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


@inner
def _begin(given: _Given, number: int, has_norms: bool, updates: Integers, is_ours: Flags) -> int:
    """List a plan's updates, mark those that the engine must make, and return their number.

    The engine must make the updates that not every worker makes. It makes all updates in two cases: gradients have
    norms and there is at least one such update, or the plan has both shared norms and norms of each worker's own.
    """
    count, some, own, shared = 0, False, False, False
    for place in range(given.first[number], given.first[number + 1]):
        stamp = given.stamps[place]
        if _settles(stamp[LIST], len(given.templates)) and stamp[LIST] % NUM_LISTS == ONCE:
            template = given.templates[given.messages[stamp[MESSAGE], TEMPLATE]]
            updates[count], is_ours[count] = place, template[BY_EVERY_WORKER] == 0
            some |= is_ours[count]
            own |= template[OWN_NORM] != 0
            shared |= template[OWN_NORM] == 0
            count += 1
    if has_norms and (some or (own and shared)):
        is_ours[:count] = True
    return count


@inner
def _has_one(given: _Given, stamp: Integers, is_ours: Flags) -> bool:
    """Whether the engine updates one of the variables of this stamp."""
    for piece in range(given.slices[stamp[FROM], FIRST_PIECE], given.slices[stamp[TO], FIRST_PIECE]):
        if is_ours[given.parts[given.pieces[piece, PART], VARIABLE]]:
            return True
    return False


@inner
def _claim(given: _Given, stamp: Integers, is_ours: Flags) -> bool:
    """Mark all variables of a stamp as updated by the engine; return whether any was not marked before."""
    is_new = False
    for piece in range(given.slices[stamp[FROM], FIRST_PIECE], given.slices[stamp[TO], FIRST_PIECE]):
        variable = given.parts[given.pieces[piece, PART], VARIABLE]
        is_new |= not is_ours[variable]
        is_ours[variable] = True
    return is_new
