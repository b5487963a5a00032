"""Turns a plan's tables into the scene that the kernel simulates: parts of ranks, dependencies, links. Compiled."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from autosync.plan.tables import EVENTS, Gates, Operations
from autosync.simulators.jit import borrows_inner, called, inner
from autosync.simulators.shared.arrays import Flags, Floats, Integers, Records
from autosync.simulators.timeline.move_tables import MoveTables
from autosync.simulators.timeline.one_node import BEFORE, HERE, NEXT
from autosync.simulators.timeline.plan_messages import messages_of
from autosync.simulators.timeline.scene import CHANNEL, LINE, PART, TAKE, NetworkLinks, Scene, Times
from autosync.simulators.timeline.training_program import Program
from autosync.simulators.timeline.transfer_sizes import (
    AHEAD_BYTES,
    FREE_AHEAD_BYTES,
    LEAST_AHEAD,
    Messages,
    TransferSizes,
)

_OPERATION, _GRAD_READY = EVENTS.index("operation"), EVENTS.index("grad_ready")


class SceneInputs(NamedTuple):
    """The inputs of a scene.

    For each operation, `local_work` is the processor time of local work on all its elements, and `local_seconds` its
    time without a processor. `added_share` is the share of received bytes that one core adds up. `by_users` marks the
    updates that the user's optimizer makes while training computes. `lane_width` is the number of transfers of a lane
    that run at a time. `is_one_node`: the ranks are those of a node that represents all.
    """

    operations: Operations
    gates: Gates
    num_lanes: int
    lane_width: int
    move_tables: MoveTables
    network: NetworkLinks
    times: Times
    trains: Flags
    program: Program
    local_work: Floats
    local_seconds: Floats
    added_share: Floats
    by_users: Flags
    is_native: Flags
    is_one_node: bool


@called
def scene_of(inputs: SceneInputs) -> Scene:
    """Return the scene of a plan."""
    operations = inputs.operations
    first_part = _first_parts(inputs)
    part_of = np.full((len(operations.shape), len(inputs.trains)), -1, np.int64)
    parts = _parts(inputs, first_part, part_of)
    # Nothing overtakes the most urgent transfers, so only the others are cut into short pieces.
    is_short = operations.priority > _most_urgent(operations)
    sizes = TransferSizes(operations.shape, operations.num_elements, operations.item_bytes, is_short, first_part)
    messages = messages_of(inputs.move_tables, sizes)
    _add_messages(inputs, parts, messages, is_short)
    channels, lines = _channels(inputs, parts, messages)
    first_follower, follower, follower_lag = _followers(inputs)
    num_waits, first_on_event, on_event = _on_events(inputs, parts)
    first_queued, queued = _queues(inputs, parts)
    return Scene(
        network=inputs.network,
        times=inputs.times,
        num_lanes=inputs.num_lanes,
        num_gates=len(inputs.gates.kind),
        num_events=inputs.program.num_events,
        lane_width=inputs.lane_width,
        trains=inputs.trains,
        is_transfer=operations.is_transfer,
        lane=operations.lane,
        priority=operations.priority,
        urgency=operations.message,
        every=operations.every,
        parts=parts,
        takes=_takes(inputs, parts, messages),
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
        program=inputs.program.step,
        program_argument=inputs.program.argument,
        program_seconds=inputs.program.seconds,
    )


@inner
def _first_parts(inputs: SceneInputs) -> Integers:
    """Return the first part of each operation, which has one for each member of its groups; and the number of parts."""
    shapes, tables = inputs.operations.shape, inputs.move_tables
    found = np.zeros(len(shapes) + 1, np.int64)
    for number, shape in enumerate(shapes):
        first, last = tables.group_first[tables.first_group[shape]], tables.group_first[tables.first_group[shape + 1]]
        found[number + 1] = found[number] + last - first
    return found


@inner
def _most_urgent(operations: Operations) -> int:
    """Return the lowest priority number of a transfer, which is the most urgent."""
    most_urgent = 1 << 40
    for number in range(len(operations.shape)):
        if operations.is_transfer[number]:
            most_urgent = min(most_urgent, operations.priority[number])
    return most_urgent


@inner
def _add_messages(inputs: SceneInputs, parts: Records, messages: Messages, is_short: Flags) -> None:
    """Enter the messages that parts take and post."""
    for part in range(len(parts)):
        parts[part].first_take = messages.first_take[part]
        parts[part].num_takes = messages.first_take[part + 1] - messages.first_take[part]
        parts[part].num_posts, parts[part].breadth = messages.num_posts[part], messages.breadth[part]
        parts[part].num_first = messages.num_first[part]
        _look_ahead(inputs, parts[part], messages, is_short[parts[part].operation])


@inner
def _takes(inputs: SceneInputs, parts: Records, messages: Messages) -> Records:
    takes = np.empty(len(messages.take_channel), TAKE)
    for take in range(len(takes)):
        takes[take].channel, takes[take].ordinal = messages.take_channel[take], messages.take_ordinal[take]
        takes[take].added_bytes = messages.take_added_bytes[take]
    for part in range(len(parts)):
        share = inputs.added_share[parts[part].operation]
        if share != 1.0:
            first = parts[part].first_take
            for take in range(first, first + parts[part].num_takes):
                takes[take].added_bytes *= share
    return takes


@inner
def _look_ahead(inputs: SceneInputs, part: Any, messages: Messages, is_short: bool) -> None:  # noqa: FBT001 - numba has no keyword-only ones
    """Enter how far ahead a part requests messages, and whether before its turn, as `wire.flow_control` does."""
    is_native, longest = inputs.is_native[part.operation], 1.0
    for take in range(part.first_take, part.first_take + part.num_takes):
        first = messages.first_message[messages.take_channel[take]]
        longest = max(longest, messages.message_bytes[first + messages.take_ordinal[take]])
    num_bytes = AHEAD_BYTES if is_short else FREE_AHEAD_BYTES
    part.ahead = LEAST_AHEAD if is_native else max(LEAST_AHEAD, int(num_bytes / longest))
    part.waits_its_turn = is_native or part.num_first > 0 or part.num_takes + part.num_posts == 0


@inner
def _parts(inputs: SceneInputs, first_part: Integers, part_of: Integers) -> Records:
    operations, tables = inputs.operations, inputs.move_tables
    parts = np.zeros(first_part[-1], PART)
    for number, shape in enumerate(operations.shape):
        part = first_part[number]
        for group in range(tables.first_group[shape], tables.first_group[shape + 1]):
            size = tables.group_size[group]
            for at in range(tables.group_first[group], tables.group_first[group + 1]):
                parts[part].operation, parts[part].rank = number, tables.ranks[at]
                part_of[number, tables.ranks[at]] = part
                if operations.is_transfer[number]:
                    parts[part].work = inputs.times.transfer if size > 1 else 0.0
                elif not inputs.by_users[number]:
                    share = tables.local_share[at] if operations.sharded[number] else 1.0
                    parts[part].work = inputs.times.local + inputs.local_work[number] * share
                    parts[part].seconds = inputs.local_seconds[number] * share
                part += 1
    return parts


@inner
def _channels(inputs: SceneInputs, parts: Records, messages: Messages) -> tuple[Records, Records]:
    """Return the channels and the connections that they use."""
    context, num_contexts = _contexts(inputs)
    num_ranks = len(inputs.trains)
    channels = np.empty(len(messages.channel_source), CHANNEL)
    for channel in range(len(channels)):
        one, source, destination = (
            channels[channel],
            messages.channel_source[channel],
            messages.channel_destination[channel],
        )
        operation, hop, back = parts[source].operation, 0, 0
        if inputs.is_one_node:
            hop = messages.channel_hop[channel]
            back = HERE if hop == HERE else BEFORE if hop == NEXT else NEXT
        first = context[operation]
        one.source, one.destination, one.first_message = source, destination, messages.first_message[channel]
        one.num_messages = messages.first_message[channel + 1] - messages.first_message[channel]
        there, here = parts[destination].rank, parts[source].rank
        one.line = ((hop * num_contexts + first) * num_ranks + here) * num_ranks + there
        one.back = ((back * num_contexts + first) * num_ranks + there) * num_ranks + here
        one.is_native = inputs.is_native[operation]
    return channels, _lines(inputs, num_contexts)


@inner
def _lines(inputs: SceneInputs, num_contexts: int) -> Records:
    """Return the connections. If one node represents all, each has also those to the next node and the one before."""
    num_ranks, network = len(inputs.trains), inputs.network
    num_nodes = len(network.rack)
    lines = np.empty((3 if inputs.is_one_node else 1) * num_contexts * num_ranks * num_ranks, LINE)
    for line in range(len(lines)):
        one = lines[line]
        sender, is_there = line // num_ranks % num_ranks, line >= num_contexts * num_ranks * num_ranks
        start, end = network.node[sender], network.node[line % num_ranks]
        one.link, one.queue, one.rack_out, one.rack_in = start, end, -1, -1
        if start == end and not is_there:
            one.link, one.queue, one.rack_out = num_nodes + sender, -1, network.bus[start]
        elif network.rack[start] != network.rack[end]:
            if network.rack[start] >= 0:
                one.rack_out = num_nodes + network.rack[start]
            if network.rack[end] >= 0:
                one.rack_in = num_nodes + network.num_racks + network.rack[end]
        else:
            one.rack_out, one.rack_in = network.bus[start], network.bus[end]
    return lines


@inner
def _contexts(inputs: SceneInputs) -> tuple[Integers, int]:
    """Return the context of each operation, and the number of contexts.

    Native collectives of the same groups in the same lane have connections of their own, and so their own context.
    """
    operations = inputs.operations
    found = np.zeros(len(operations.shape), np.int64)
    shapes, lanes = np.empty(len(operations.shape), np.int64), np.empty(len(operations.shape), np.int64)
    count = 0
    for number, shape in enumerate(operations.shape):
        if not inputs.is_native[number]:
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
def _followers(inputs: SceneInputs) -> tuple[Integers, Integers, Integers]:
    """Return for each operation the operations that wait for it, and the gates, numbered after all operations."""
    operations, gates = inputs.operations, inputs.gates
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
def _event(inputs: SceneInputs, what: int, position: int) -> int:
    """Return the event of an edge; -1 if the edge is from an operation."""
    operations, gates = inputs.operations, inputs.gates
    edges = operations.after if what < len(operations.shape) else gates.after
    event = edges.event[position]
    if event == _OPERATION:
        return -1
    return int(edges.target[position] if event == _GRAD_READY else inputs.program.step_called)


@inner
def _on_events(inputs: SceneInputs, parts: Records) -> tuple[Integers, Integers, Integers]:
    """Return how many events each item waits for, and which items wait for each event."""
    operations, gates = inputs.operations, inputs.gates
    num_operations, num_gates, num_ranks = len(operations.shape), len(gates.kind), len(inputs.trains)
    begins = np.zeros(inputs.program.num_events + 1, np.int64)
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
                    event = _event(inputs, what, position)
                elif what < num_operations and inputs.by_users[what]:
                    event = inputs.program.user_updated
                if event < 0:
                    continue
                if fills:
                    found[place[event]] = what
                    place[event] += 1
                    # Servers have no gradients, but they have steps.
                    counts[what, 0] += 1
                    counts[what, 1] += event >= inputs.program.step_called
                else:
                    begins[event + 1] += 1
    waits = np.zeros(len(parts) + num_gates * num_ranks, np.int64)
    for part in range(len(parts)):
        waits[part] = counts[parts[part].operation, 0 if inputs.trains[parts[part].rank] else 1]
    for gate in range(num_gates):
        for one in range(num_ranks):
            waits[len(parts) + gate * num_ranks + one] = counts[num_operations + gate, 0]
    return waits, begins, found


@inner
def _queues(inputs: SceneInputs, parts: Records) -> tuple[Integers, Integers]:
    """Return the transfers of each rank and lane, in the plan's order."""
    operations = inputs.operations
    begins = np.zeros(len(inputs.trains) * inputs.num_lanes + 1, np.int64)
    place, queued = np.empty(0, np.int64), np.empty(0, np.int64)
    for fills in (False, True):
        if fills:
            begins = np.cumsum(begins)
            place, queued = begins[:-1].copy(), np.empty(begins[-1], np.int64)
        for part in range(len(parts)):
            if not operations.is_transfer[parts[part].operation]:
                continue
            queue = parts[part].rank * inputs.num_lanes + operations.lane[parts[part].operation]
            if fills:
                queued[place[queue]] = part
                place[queue] += 1
            else:
                begins[queue + 1] += 1
    return begins, queued
