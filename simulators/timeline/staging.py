"""From a plan's tables to the scene that the kernel plays: parts of ranks, what waits for what, links. Compiled."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from autosync.plan.tables import EVENTS, Gates, Operations
from autosync.simulators.compiled import borrows_inner, called, inner
from autosync.simulators.timeline.book import Book
from autosync.simulators.timeline.copies import messages_of
from autosync.simulators.timeline.messages import (
    AHEAD_BYTES,
    FREE_AHEAD_BYTES,
    LEAST_AHEAD,
    Messages,
    Sizes,
)
from autosync.simulators.timeline.network import CHANNEL, LINE, PART, TAKE, Network, Records, Scene, Times
from autosync.simulators.timeline.problem import Flags, Floats, Integers, Program

_OPERATION, _GRAD_READY = EVENTS.index("operation"), EVENTS.index("grad_ready")


class Script(NamedTuple):
    """What a scene is made from.

    `local_work` is what each operation takes of a processor that is local work, on the whole of its elements,
    `local_seconds` what it takes beside that; `by_users` are the
    updates that the user's optimizer makes while training computes; `lane_width` is how many transfers of a lane are
    under way at a time.
    """

    operations: Operations
    gates: Gates
    num_lanes: int
    lane_width: int
    book: Book
    network: Network
    times: Times
    trains: Flags
    program: Program
    local_work: Floats
    local_seconds: Floats
    by_users: Flags
    is_native: Flags


@called
def stage(script: Script) -> Scene:
    """The scene of a plan."""
    operations, book, num_ranks = script.operations, script.book, len(script.trains)
    num_operations = len(operations.shape)
    first_part = np.zeros(num_operations + 1, np.int64)
    for number, shape in enumerate(operations.shape):
        first, last = book.group_first[book.first_group[shape]], book.group_first[book.first_group[shape + 1]]
        first_part[number + 1] = first_part[number] + last - first
    part_of = np.full((num_operations, num_ranks), -1, np.int64)
    parts = _parts(script, first_part, part_of)
    most_urgent = 1 << 40
    for number in range(num_operations):
        if operations.is_transfer[number]:
            most_urgent = min(most_urgent, operations.priority[number])
    is_short = operations.priority > most_urgent
    messages = messages_of(
        book, Sizes(operations.shape, operations.num_elements, operations.item_bytes, is_short, first_part)
    )
    for part in range(len(parts)):
        parts[part].first_take = messages.first_take[part]
        parts[part].num_takes = messages.first_take[part + 1] - messages.first_take[part]
        parts[part].num_posts, parts[part].breadth = messages.num_posts[part], messages.breadth[part]
        parts[part].num_first = messages.num_first[part]
        _look_ahead(script, parts[part], messages, is_short[parts[part].operation])
    channels, lines = _channels(script, parts, messages)
    takes = np.empty(len(messages.take_channel), TAKE)
    for take in range(len(takes)):
        takes[take].channel, takes[take].ordinal = messages.take_channel[take], messages.take_ordinal[take]
        takes[take].added_bytes = messages.take_added_bytes[take]
    first_follower, follower, follower_lag = _followers(script)
    num_waits, first_on_event, on_event = _on_events(script, parts)
    first_queued, queued = _queues(script, parts)
    return Scene(
        network=script.network,
        times=script.times,
        num_lanes=script.num_lanes,
        num_gates=len(script.gates.kind),
        num_events=script.program.num_events,
        lane_width=script.lane_width,
        trains=script.trains,
        is_transfer=operations.is_transfer,
        lane=operations.lane,
        priority=operations.priority,
        urgency=operations.message,
        every=operations.every,
        parts=parts,
        takes=takes,
        channels=channels,
        lines=lines,
        message_bytes=messages.message_bytes,
        first_post=messages.first_post,
        post_channel=messages.post_channel,
        part_of=part_of,
        first_follower=first_follower,
        follower=follower,
        follower_lag=follower_lag,
        num_waits=num_waits,
        first_on_event=first_on_event,
        on_event=on_event,
        first_queued=first_queued,
        queued=queued,
        program=script.program.step,
        program_argument=script.program.argument,
        program_seconds=script.program.seconds,
    )


@inner
def _look_ahead(script: Script, part: Any, messages: Messages, is_short: bool) -> None:  # noqa: FBT001 - numba has no keyword-only ones
    """How far a part asks ahead, and whether before its turn, as `runtime.exchange` does."""
    is_native, longest = script.is_native[part.operation], 1.0
    for take in range(part.first_take, part.first_take + part.num_takes):
        first = messages.first_message[messages.take_channel[take]]
        longest = max(longest, messages.message_bytes[first + messages.take_ordinal[take]])
    num_bytes = AHEAD_BYTES if is_short else FREE_AHEAD_BYTES
    part.ahead = LEAST_AHEAD if is_native else max(LEAST_AHEAD, int(num_bytes / longest))
    part.waits_its_turn = is_native or part.num_first > 0 or part.num_takes + part.num_posts == 0


@inner
def _parts(script: Script, first_part: Integers, part_of: Integers) -> Records:
    operations, book = script.operations, script.book
    parts = np.zeros(first_part[-1], PART)
    for number, shape in enumerate(operations.shape):
        part = first_part[number]
        for group in range(book.first_group[shape], book.first_group[shape + 1]):
            size = book.group_size[group]
            for at in range(book.group_first[group], book.group_first[group + 1]):
                parts[part].operation, parts[part].rank = number, book.ranks[at]
                part_of[number, book.ranks[at]] = part
                if operations.is_transfer[number]:
                    parts[part].work = script.times.transfer if size > 1 else 0.0
                elif not script.by_users[number]:
                    share = 1.0 / size if operations.sharded[number] else 1.0
                    parts[part].work = script.times.local + script.local_work[number] * share
                    parts[part].seconds = script.local_seconds[number] * share
                part += 1
    return parts


@inner
def _channels(script: Script, parts: Records, messages: Messages) -> tuple[Records, Records]:
    """Channels, and the connections that they use."""
    context, num_contexts = _contexts(script)
    num_ranks, network = len(script.trains), script.network
    num_nodes = len(network.rack)
    channels = np.empty(len(messages.channel_source), CHANNEL)
    for channel in range(len(channels)):
        one, source, destination = (
            channels[channel],
            messages.channel_source[channel],
            messages.channel_destination[channel],
        )
        operation = parts[source].operation
        first = context[operation] * num_ranks
        one.source, one.destination, one.first_message = source, destination, messages.first_message[channel]
        one.num_messages = messages.first_message[channel + 1] - messages.first_message[channel]
        one.line = (first + parts[source].rank) * num_ranks + parts[destination].rank
        one.back = (first + parts[destination].rank) * num_ranks + parts[source].rank
        one.is_native = script.is_native[operation]
        if num_ranks == 1:
            one.back += num_contexts
    # Where one rank stands for all it hears from another one than it sends to: requests have connections of their own.
    lines = np.empty(num_contexts * (num_ranks * num_ranks if num_ranks > 1 else 2), LINE)
    for line in range(len(lines)):
        one = lines[line]
        sender = line // num_ranks % num_ranks
        start, end = network.node[sender], network.node[line % num_ranks]
        one.link, one.queue, one.rack_out, one.rack_in = start, end, -1, -1
        if start == end and num_ranks > 1:
            one.link, one.queue = num_nodes + sender, -1
        elif network.rack[start] != network.rack[end]:
            if network.rack[start] >= 0:
                one.rack_out = num_nodes + network.rack[start]
            if network.rack[end] >= 0:
                one.rack_in = num_nodes + network.num_racks + network.rack[end]
    return channels, lines


@inner
def _contexts(script: Script) -> tuple[Integers, int]:
    """Native collectives of the same groups in the same lane have connections of their own."""
    operations = script.operations
    found = np.zeros(len(operations.shape), np.int64)
    shapes, lanes = np.empty(len(operations.shape), np.int64), np.empty(len(operations.shape), np.int64)
    count = 0
    for number, shape in enumerate(operations.shape):
        if not script.is_native[number]:
            continue
        for known in range(count + 1):
            if known == count:
                shapes[count], lanes[count] = shape, operations.lane[number]
                count += 1
            if shapes[known] == shape and lanes[known] == operations.lane[number]:
                found[number] = known + 1
                break
    return found, count + 1


@inner
def _followers(script: Script) -> tuple[Integers, Integers, Integers]:
    """For each operation the operations, and behind these in number the gates, that wait for it."""
    operations, gates = script.operations, script.gates
    num_operations = len(operations.shape)
    begins = np.zeros(num_operations + 1, np.int64)
    place, found, lags = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    for fills in (False, True):
        if fills:
            begins = np.cumsum(begins)
            place, found, lags = begins[:-1].copy(), np.empty(begins[-1], np.int64), np.empty(begins[-1], np.int64)
        for what in range(num_operations + len(gates.kind)):
            edges = operations.after if what < num_operations else gates.after
            row = what if what < num_operations else what - num_operations
            for position in range(edges.first[row], edges.first[row + 1]):
                if edges.event[position] != _OPERATION:
                    continue
                target = edges.target[position]
                if fills:
                    found[place[target]], lags[place[target]] = what, edges.lag[position]
                    place[target] += 1
                else:
                    begins[target + 1] += 1
    return begins, found, lags


@borrows_inner
def _event(script: Script, what: int, position: int) -> int:
    """The event of an edge; -1: an operation."""
    operations, gates = script.operations, script.gates
    edges = operations.after if what < len(operations.shape) else gates.after
    event = edges.event[position]
    if event == _OPERATION:
        return -1
    return int(edges.target[position] if event == _GRAD_READY else script.program.step_called)


@inner
def _on_events(script: Script, parts: Records) -> tuple[Integers, Integers, Integers]:
    """How many events each item waits for, and what waits for each event."""
    operations, gates = script.operations, script.gates
    num_operations, num_gates, num_ranks = len(operations.shape), len(gates.kind), len(script.trains)
    begins = np.zeros(script.program.num_events + 1, np.int64)
    place, found = np.empty(0, np.int64), np.empty(0, np.int64)
    counts = np.zeros((num_operations + num_gates, 2), np.int64)
    for fills in (False, True):
        if fills:
            begins = np.cumsum(begins)
            place, found = begins[:-1].copy(), np.empty(begins[-1], np.int64)
        for what in range(num_operations + num_gates):
            edges = operations.after if what < num_operations else gates.after
            row = what if what < num_operations else what - num_operations
            for position in range(edges.first[row], edges.first[row + 1] + 1):
                event = -1
                if position < edges.first[row + 1]:
                    event = _event(script, what, position)
                elif what < num_operations and script.by_users[what]:
                    event = script.program.user_updated
                if event < 0:
                    continue
                if fills:
                    found[place[event]] = what
                    place[event] += 1
                    # Servers have no gradients, but steps.
                    counts[what, 0] += 1
                    counts[what, 1] += event >= script.program.step_called
                else:
                    begins[event + 1] += 1
    waits = np.zeros(len(parts) + num_gates * num_ranks, np.int64)
    for part in range(len(parts)):
        waits[part] = counts[parts[part].operation, 0 if script.trains[parts[part].rank] else 1]
    for gate in range(num_gates):
        for one in range(num_ranks):
            waits[len(parts) + gate * num_ranks + one] = counts[num_operations + gate, 0]
    return waits, begins, found


@inner
def _queues(script: Script, parts: Records) -> tuple[Integers, Integers]:
    """For each rank and lane its transfers, in the plan's order."""
    operations = script.operations
    begins = np.zeros(len(script.trains) * script.num_lanes + 1, np.int64)
    place, queued = np.empty(0, np.int64), np.empty(0, np.int64)
    for fills in (False, True):
        if fills:
            begins = np.cumsum(begins)
            place, queued = begins[:-1].copy(), np.empty(begins[-1], np.int64)
        for part in range(len(parts)):
            if not operations.is_transfer[parts[part].operation]:
                continue
            queue = parts[part].rank * script.num_lanes + operations.lane[parts[part].operation]
            if fills:
                queued[place[queue]] = part
                place[queue] += 1
            else:
                begins[queue + 1] += 1
    return begins, queued
