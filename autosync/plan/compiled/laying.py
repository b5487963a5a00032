"""Lists, in compiled code, the stamps of each plan, in the order of the lowering.

A *stamp* applies a list of a template's steps to some slices of a message. First come the stamps that collect
gradients, in the order in which gradients become ready; then norms, if the task clips or scales; then the stamps
that settle parameters, in the order of their next use.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autosync.plan.compiled.data import (
    BY_SLICE,
    COLLECT,
    EACH,
    EVERYWHERE,
    FIRST_MESSAGE,
    FIRST_SLICE,
    FIRST_STEP,
    FROM,
    HOLDERS,
    LIST,
    MESSAGE,
    NORM,
    NORM_AT,
    NORM_SHARE,
    NUM_LISTS,
    NUM_STAMP_COLUMNS,
    ONCE,
    OWN_NORM,
    POSITION,
    ROUND_AT,
    SLICE_READY,
    SLICE_USE,
    TEMPLATE,
    TO,
    Integers,
    Slices,
    Stamps,
    Templates,
)
from autosync.plan.compiled.jit import called, inner

_NONE = -1
_ALL_WORKERS = 0


def stamps_of(slices: Slices, templates: Templates, totals: Integers, num_holders: int) -> Stamps:
    """Return the stamps of a batch; `totals` has each strategy's list that adds up norms, or is empty without norms."""
    count, num_slices = len(slices.strategies) - 1, len(slices.amounts)
    most_near = (num_slices + count) * (num_holders + 1) if len(totals) else 0
    found = Stamps(
        # A slice has at most four stamps: it is collected, has a norm, and is settled in a round and by itself.
        table=np.empty((4 * num_slices + count, NUM_STAMP_COLUMNS), dtype=np.int64),
        first=np.zeros(count + 1, dtype=np.int64),
        first_operation=np.zeros(count + 1, dtype=np.int64),
        collected=np.empty(num_slices, dtype=np.int64),
        near=np.empty(most_near, dtype=np.int64),
    )
    given = _Given(slices.strategies, slices.messages, slices.slices, templates.table, templates.lists, totals)
    _lay(given, found, num_holders)
    return found._replace(table=found.table[: found.first[-1]])


class _Given(NamedTuple):
    """The tables from which stamps are made."""

    strategies: Integers
    messages: Integers
    slices: Integers
    templates: Integers
    lists: Integers
    totals: Integers


class _Scope(NamedTuple):
    """The strategy whose stamps are being listed: its number, its messages (`first` to `last`) and its slices."""

    number: int
    first: int
    last: int
    begin: int
    end: int


_STAMPS, _OPERATIONS, _NEAR = range(3)


@called
def _lay(given: _Given, found: Stamps, num_holders: int) -> None:
    # The number of stamps and norms listed so far, and the position of the plan's next operation.
    at = np.zeros(3, np.int64)
    num_uses = 1 + max(given.slices[:, SLICE_USE].max(), given.slices[:, SLICE_READY].max())
    bucket, last = np.empty(num_uses + 1, np.int64), np.empty(num_holders + 1, np.int64)
    for number in range(len(given.strategies) - 1):
        first, end = given.strategies[number, FIRST_MESSAGE], given.strategies[number + 1, FIRST_MESSAGE]
        scope = _Scope(number, first, end, given.messages[first, FIRST_SLICE], given.messages[end, FIRST_SLICE])
        at[_OPERATIONS] = 0
        of_slice = _messages(given, scope)
        _collect(given, found, scope, of_slice, bucket, at)
        shared, own = _NONE, _NONE
        if len(given.totals):
            shared, own = _norms(given, found, scope, last, at)
        _settle(given, found, scope, shared, own, bucket, at)
        found.first[number + 1] = at[_STAMPS]
        found.first_operation[number + 1] = found.first_operation[number] + at[_OPERATIONS]


@inner
def _put(
    lists: Integers,
    table: Integers,
    of_list: int,
    message: int,
    begin: int,
    end: int,
    norm: int,
    at: Integers,
) -> int:
    """Add a stamp that applies a list to slices, unless the list is empty. Return its first operation's position."""
    position, row = int(at[_OPERATIONS]), at[_STAMPS]
    num_steps = lists[of_list + 1, FIRST_STEP] - lists[of_list, FIRST_STEP]
    if num_steps:
        table[row, POSITION], table[row, LIST], table[row, MESSAGE] = position, of_list, message
        table[row, FROM], table[row, TO], table[row, NORM_AT], table[row, ROUND_AT] = begin, end, norm, position
        at[_STAMPS] += 1
        at[_OPERATIONS] += num_steps
    return position


@inner
def _messages(given: _Given, scope: _Scope) -> Integers:
    """Return the message of each slice."""
    found = np.empty(scope.end - scope.begin, np.int64)
    for message in range(scope.first, scope.last):
        for one in range(given.messages[message, FIRST_SLICE], given.messages[message + 1, FIRST_SLICE]):
            found[one - scope.begin] = message
    return found


@inner
def _in_order(keys: Integers, bucket: Integers) -> Integers:
    """Return the positions sorted by their keys; positions with equal keys keep their order."""
    order = np.empty(len(keys), np.int64)
    bucket[:] = 0
    for key in keys:
        bucket[key + 1] += 1
    for key in range(1, len(bucket)):
        bucket[key] += bucket[key - 1]
    for one, key in enumerate(keys):
        order[bucket[key]] = one
        bucket[key] += 1
    return order


@inner
def _collect(given: _Given, found: Stamps, scope: _Scope, of_slice: Integers, bucket: Integers, at: Integers) -> None:
    """Add the stamps that collect all slices, in the order in which their last gradients become ready."""
    lists, table = given.lists, found.table
    for one in _in_order(given.slices[scope.begin : scope.end, SLICE_READY], bucket):
        message, place = of_slice[one], scope.begin + one
        of_list = given.messages[message, TEMPLATE] * NUM_LISTS + COLLECT
        found.collected[place] = _put(lists, table, of_list, message, place, place + 1, _NONE, at)


@inner
def _settle(given: _Given, found: Stamps, scope: _Scope, shared: int, own: int, bucket: Integers, at: Integers) -> None:
    """Add the stamps that settle messages or slices, in the order of their next use."""
    lists, table, messages = given.lists, found.table, given.messages
    count, most = 0, scope.end - scope.begin
    of_round, begins, ends = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    uses = np.empty(most, np.int64)
    for message in range(scope.first, scope.last):
        begin, end = messages[message, FIRST_SLICE], messages[message + 1, FIRST_SLICE]
        by_slice = given.templates[messages[message, TEMPLATE], BY_SLICE]
        for one in range(begin, end):
            if one == begin or by_slice:
                of_round[count], begins[count], uses[count] = message, one, given.slices[one, SLICE_USE]
                count += 1
            ends[count - 1] = one + 1
            uses[count - 1] = min(uses[count - 1], given.slices[one, SLICE_USE])
    for one in _in_order(uses[:count], bucket):
        message = of_round[one]
        template = messages[message, TEMPLATE]
        norm = own if given.templates[template, OWN_NORM] else shared
        position = _put(lists, table, template * NUM_LISTS + ONCE, message, begins[one], ends[one], norm, at)
        each = template * NUM_LISTS + EACH
        if lists[each + 1, FIRST_STEP] > lists[each, FIRST_STEP]:
            for place in range(begins[one], ends[one]):
                before = at[_STAMPS]
                _put(lists, table, each, message, place, place + 1, norm, at)
                table[before, ROUND_AT] = position


# Norms, as in `lowering`.


@inner
def _norms(given: _Given, found: Stamps, scope: _Scope, last: Integers, at: Integers) -> tuple[int, int]:
    """Add norms; return the operations that finish the shared norm and workers' own norms (-1: no such gradients)."""
    lists, table = given.lists, found.table
    everywhere, speaker = True, _NONE
    for message in range(scope.first, scope.last):
        template = given.templates[given.messages[message, TEMPLATE]]
        if not template[OWN_NORM]:
            everywhere = everywhere and template[EVERYWHERE] != 0
            speaker = message if speaker == _NONE else speaker
    holders = _add_up(given, found, scope, 0, not everywhere, last, at)
    shared = last[holders[0]] if len(holders) else _NONE
    if not everywhere:
        begin = at[_NEAR]
        for holder in holders:
            found.near[at[_NEAR]] = last[holder]
            at[_NEAR] += 1
        first = given.messages[speaker, FIRST_SLICE]
        before = at[_STAMPS]
        shared = _put(lists, table, given.totals[scope.number], speaker, first, first + 1, begin, at)
        table[before, ROUND_AT] = at[_NEAR]
    holders = _add_up(given, found, scope, 1, False, last, at)
    return shared, last[holders[0]] if len(holders) else _NONE


@inner
def _add_up(
    given: _Given, found: Stamps, scope: _Scope, own: int, shares: bool, last: Integers, at: Integers
) -> Integers:
    """Add norms of finished gradients, one after the other on each rank, and return the groups that hold gradients.

    It writes the position of each group's last norm into `last`.
    """
    lists, table = given.lists, found.table
    last[:] = _NONE
    holders, count = np.empty(len(last), np.int64), 0
    for message in range(scope.first, scope.last):
        template = given.messages[message, TEMPLATE]
        if given.templates[template, OWN_NORM] != own:
            continue
        holder = given.templates[template, HOLDERS]
        kind = NORM_SHARE if shares and given.templates[template, EVERYWHERE] else NORM
        for one in range(given.messages[message, FIRST_SLICE], given.messages[message + 1, FIRST_SLICE]):
            begin = at[_NEAR]
            for other in holders[:count] if holder == _ALL_WORKERS else np.array([holder, _ALL_WORKERS]):
                if last[other] != _NONE:
                    found.near[at[_NEAR]] = last[other]
                    at[_NEAR] += 1
            before = at[_STAMPS]
            position = _put(lists, table, template * NUM_LISTS + kind, message, one, one + 1, begin, at)
            table[before, ROUND_AT] = at[_NEAR]
            if last[holder] == _NONE:
                holders[count] = holder
                count += 1
            last[holder] = position
    return holders[:count]
