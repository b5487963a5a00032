"""From a plan's tables to the kernel's problem: instances of operations, and what waits for what. Compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autosync.plan.tables import EVENTS, Gates, Operations
from autosync.simulators.compiled import called, inner
from autosync.simulators.timeline.catalog import Catalog
from autosync.simulators.timeline.problem import Flags, Floats, Integers, Problem, Program

_OPERATION, _GRAD_READY = EVENTS.index("operation"), EVENTS.index("grad_ready")


class Given(NamedTuple):
    """What a problem is put together from.

    `local_seconds` is what each operation takes that is local work, on the whole of its elements; `by_users` are the
    updates that the user's optimizer makes while training computes; `bytes_ahead` is what a sender may have sent that
    nobody has received yet.
    """

    operations: Operations
    gates: Gates
    num_lanes: int
    catalog: Catalog
    program: Program
    local_seconds: Floats
    by_users: Flags
    bytes_ahead: float


class _Items(NamedTuple):
    """Instances, those of an operation side by side from `first` on, then the gates of each class.

    Of an instance `row` is its place in the catalog and `operation` its own. Members and edges are of all items; the
    edges of gates come behind all those of operations.
    """

    num_instances: int
    first: Integers
    row: Integers
    operation: Integers
    first_member: Integers
    member: Integers
    first_edge: Integers
    last_edge: Integers


@called
def assemble(given: Given) -> Problem:
    """The problem of a plan."""
    operations, catalog, program = given.operations, given.catalog, given.program
    items = _items(given)
    operation = items.operation
    first_use, use_link, use_bytes, use_connections = _uses(given, items)
    first_waiting, waiting, waiting_lag = _waiting(given, items)
    num_waits, first_on_event, on_event = _on_events(given, items)
    first_queued, queued = _queues(given, items)
    seconds, fastest, leave_at = _times(given, items)
    return Problem(
        trains=catalog.trains,
        num_lanes=given.num_lanes,
        num_gates=len(given.gates.kind),
        num_events=program.num_events,
        is_transfer=operations.is_transfer[operation],
        seconds=seconds,
        fastest=fastest,
        urgency=np.where(operations.is_transfer, operations.priority, operations.message)[operation],
        every=operations.every[operation],
        lane=operations.lane[operation],
        leave_at=leave_at,
        first_member=items.first_member[: items.num_instances + 1],
        member=items.member,
        only_sends=_only_sends(given, items),
        first_use=first_use,
        use_link=use_link,
        use_bytes=use_bytes,
        use_connections=use_connections,
        num_waits=num_waits,
        first_waiting=first_waiting,
        waiting=waiting,
        waiting_lag=waiting_lag,
        first_on_event=first_on_event,
        on_event=on_event,
        first_queued=first_queued,
        queued=queued,
        first_instance=items.first,
        program=program.step,
        program_argument=program.argument,
        program_seconds=program.seconds,
        capacity=catalog.capacity,
    )


@inner
def _items(given: Given) -> _Items:
    operations, gates, catalog = given.operations, given.gates, given.catalog
    first = np.zeros(len(operations.shape) + 1, np.int64)
    for number, shape in enumerate(operations.shape):
        first[number + 1] = first[number] + catalog.first_instance[shape + 1] - catalog.first_instance[shape]
    num_instances, num_gates = first[-1], len(gates.kind)
    num_items = num_instances + len(catalog.trains) * num_gates
    row, operation = np.empty(num_instances, np.int64), np.empty(num_instances, np.int64)
    first_edge, last_edge = np.empty(num_items, np.int64), np.empty(num_items, np.int64)
    first_member = np.zeros(num_items + 1, np.int64)
    for number, shape in enumerate(operations.shape):
        for item in range(first[number], first[number + 1]):
            of = catalog.first_instance[shape] + item - first[number]
            row[item], operation[item] = of, number
            first_edge[item], last_edge[item] = operations.after.first[number], operations.after.first[number + 1]
            first_member[item + 1] = first_member[item] + catalog.first_member[of + 1] - catalog.first_member[of]
    behind = operations.after.first[-1]
    for item in range(num_instances, num_items):
        gate = (item - num_instances) % num_gates
        first_edge[item], last_edge[item] = behind + gates.after.first[gate], behind + gates.after.first[gate + 1]
        first_member[item + 1] = first_member[item] + 1
    member = np.empty(first_member[-1], np.int64)
    for item in range(num_instances):
        begin, end = catalog.first_member[row[item]], catalog.first_member[row[item] + 1]
        member[first_member[item] : first_member[item + 1]] = catalog.member[begin:end]
    for item in range(num_instances, num_items):
        member[first_member[item]] = (item - num_instances) // num_gates
    return _Items(num_instances, first, row, operation, first_member, member, first_edge, last_edge)


# What instances cost.


@inner
def _only_sends(given: Given, items: _Items) -> Flags:
    found = np.zeros(len(items.member), np.bool_)
    for item, row in enumerate(items.row):
        begin, end = given.catalog.first_member[row], given.catalog.first_member[row + 1]
        found[items.first_member[item] : items.first_member[item + 1]] = given.catalog.only_sends[begin:end]
    return found


@inner
def _num_bytes(operations: Operations, number: int) -> int:
    return int(operations.num_elements[number] * operations.item_bytes[number])


@inner
def _uses(given: Given, items: _Items) -> tuple[Integers, Integers, Floats, Floats]:
    catalog = given.catalog
    first = np.zeros(items.num_instances + 1, np.int64)
    for item, row in enumerate(items.row):
        first[item + 1] = first[item] + catalog.first_use[row + 1] - catalog.first_use[row]
    link, amount, connections = np.empty(first[-1], np.int64), np.empty(first[-1]), np.empty(first[-1])
    for item, row in enumerate(items.row):
        begin, end = catalog.first_use[row], catalog.first_use[row + 1]
        num_bytes = _num_bytes(given.operations, items.operation[item])
        link[first[item] : first[item + 1]] = catalog.use_link[begin:end]
        amount[first[item] : first[item + 1]] = catalog.use_share[begin:end] * num_bytes
        connections[first[item] : first[item + 1]] = catalog.use_connections[begin:end]
    return first, link, amount, connections


@inner
def _times(given: Given, items: _Items) -> tuple[Floats, Floats, Floats]:
    """Of each instance its seconds, those of its bytes alone, and what is left of it when senders are done."""
    operations, catalog, count = given.operations, given.catalog, items.num_instances
    seconds, fastest, leave_at = np.zeros(count), np.zeros(count), np.full(count, -1.0)
    for item, row in enumerate(items.row):
        number = items.operation[item]
        if operations.is_transfer[number]:
            num_bytes = _num_bytes(operations, number)
            seconds[item] = catalog.seconds[row]
            fastest[item] = catalog.alone[row] * num_bytes
            if catalog.only_sends[catalog.first_member[row] : catalog.first_member[row + 1]].any():
                leave_at[item] = min(1.0, given.bytes_ahead / max(1.0, catalog.sent[row] * num_bytes))
        elif not given.by_users[number]:
            seconds[item] = given.local_seconds[number]
            if operations.sharded[number]:
                seconds[item] /= catalog.num_members[row]
    return seconds, fastest, leave_at


# What waits for what. Entries are counted first, and filled in when it is known where they go.


@inner
def _edge(given: Given, position: int) -> tuple[int, int, int]:
    """Event, target and lag."""
    edges, behind = given.operations.after, given.operations.after.first[-1]
    if position < behind:
        return edges.event[position], edges.target[position], edges.lag[position]
    edges, position = given.gates.after, position - behind
    return edges.event[position], edges.target[position], edges.lag[position]


@inner
def _waiting(given: Given, items: _Items) -> tuple[Integers, Integers, Integers]:
    """For each instance the items that wait for it: those that have a member in common."""
    begins = np.zeros(items.num_instances + 1, np.int64)
    place, waiting, lags = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    for fills in (False, True):
        if fills:
            begins = np.cumsum(begins)
            place, waiting, lags = begins[:-1].copy(), np.empty(begins[-1], np.int64), np.empty(begins[-1], np.int64)
        for item in range(len(items.first_edge)):
            for position in range(items.first_edge[item], items.last_edge[item]):
                event, target, lag = _edge(given, position)
                if event != _OPERATION:
                    continue
                for instance in range(items.first[target], items.first[target + 1]):
                    if not _share_member(items, item, instance):
                        continue
                    if fills:
                        waiting[place[instance]], lags[place[instance]] = item, lag
                        place[instance] += 1
                    else:
                        begins[instance + 1] += 1
    return begins, waiting, lags


@inner
def _share_member(items: _Items, one: int, other: int) -> bool:
    for ours in range(items.first_member[one], items.first_member[one + 1]):
        for theirs in range(items.first_member[other], items.first_member[other + 1]):
            if items.member[ours] == items.member[theirs]:
                return True
    return False


@inner
def _on_events(given: Given, items: _Items) -> tuple[Integers, Integers, Integers]:
    """How many events each item waits for, and for each event of each class the items that wait for it."""
    catalog, num_events = given.catalog, given.program.num_events
    num_waits = np.zeros(len(items.first_edge), np.int64)
    begins = np.zeros(len(catalog.trains) * num_events + 1, np.int64)
    place, found = np.empty(0, np.int64), np.empty(0, np.int64)
    for fills in (False, True):
        if fills:
            begins = np.cumsum(begins)
            place, found = begins[:-1].copy(), np.empty(begins[-1], np.int64)
        for item in range(len(items.first_edge)):
            for at in range(items.first_member[item], items.first_member[item + 1]):
                for position in range(items.first_edge[item], items.last_edge[item] + 1):
                    event = _event(given, items, item, items.member[at], position)
                    if event < 0:
                        continue
                    if fills:
                        found[place[event]] = item
                        place[event] += 1
                    else:
                        begins[event + 1] += 1
                        num_waits[item] += 1
    return num_waits, begins, found


@inner
def _event(given: Given, items: _Items, item: int, member: int, position: int) -> int:
    """The event that an item waits for on a member, by one of its edges; -1: none.

    Behind its edges: what the user's optimizer updates is updated when that says so.
    """
    catalog, program = given.catalog, given.program
    trains = catalog.trains[member]
    base = (member if trains else catalog.server_trainer) * program.num_events
    if position == items.last_edge[item]:
        is_users = item < items.num_instances and given.by_users[items.operation[item]]
        return base + program.user_updated if is_users else -1
    event, target, _ = _edge(given, position)
    if event == _OPERATION or (event == _GRAD_READY and not trains):
        return -1
    return base + (target if event == _GRAD_READY else program.step_called)


@inner
def _queues(given: Given, items: _Items) -> tuple[Integers, Integers]:
    """For each class and lane its transfers, in the plan's order."""
    num_queues = len(given.catalog.trains) * given.num_lanes
    begins = np.zeros(num_queues + 1, np.int64)
    place, queued = np.empty(0, np.int64), np.empty(0, np.int64)
    for fills in (False, True):
        if fills:
            begins = np.cumsum(begins)
            place, queued = begins[:-1].copy(), np.empty(begins[-1], np.int64)
        # A class may have a part in several instances of an operation, which is in its queue once.
        last = np.full(num_queues, -1)
        for item, number in enumerate(items.operation):
            if not given.operations.is_transfer[number]:
                continue
            for at in range(items.first_member[item], items.first_member[item + 1]):
                queue = items.member[at] * given.num_lanes + given.operations.lane[number]
                if last[queue] == number:
                    continue
                last[queue] = number
                if fills:
                    queued[place[queue]] = number
                    place[queue] += 1
                else:
                    begins[queue + 1] += 1
    return begins, queued
