"""Turns a plan's tables into the scene that the kernel simulates: parts of ranks, dependencies, links. Compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from autosync.simulators.jit import borrows_elements, borrows_inner
from autosync.simulators.shared.arrays import Flags, Integers, Records
from autosync.simulators.timeline.move_tables import IN_WAVES
from autosync.simulators.timeline.one_node import BEFORE, HERE, NEXT
from autosync.simulators.timeline.plan_messages import messages_of
from autosync.simulators.timeline.scene import CHANNEL, LINE, PART, TAKE, UNRULED, Scene
from autosync.simulators.timeline.scene_edges import count_edges, enter_edges, enter_waits
from autosync.simulators.timeline.scene_inputs import SceneContexts, SceneInputs, ScenePlaces, SceneRows
from autosync.simulators.timeline.transfer_sizes import (
    AHEAD_BYTES,
    FREE_AHEAD_BYTES,
    LEAST_AHEAD,
    Messages,
    TransferSizes,
)


def scene_of(inputs: SceneInputs) -> Scene:
    """Return the scene of a plan.

    Its parts are laid out and everything else is counted; then arrays are made, and then these are filled in. Numba
    compiles for far longer where a function makes arrays itself.
    """
    operations, num_ranks = inputs.operations, len(inputs.trains)
    num_operations = len(operations.shape)
    first_part = _first_parts(inputs)
    # Nothing overtakes the most urgent transfers, so only the others are cut into short pieces.
    is_ruled = operations.is_transfer & (operations.priority > UNRULED)
    is_short = operations.priority > operations.priority[is_ruled].min(initial=1 << 40)
    sizes = TransferSizes(operations.shape, operations.num_elements, operations.item_bytes, is_short, first_part)
    parts = np.zeros(first_part[-1], PART)
    part_of = np.full((num_operations, num_ranks), -1, np.int64)
    rows = SceneRows(
        follower=np.zeros(num_operations + 1, np.int64),
        on_event=np.zeros(inputs.program.num_events + 1, np.int64),
        queued=np.zeros(num_ranks * inputs.num_lanes + 1, np.int64),
    )
    contexts = SceneContexts(*(np.zeros(num_operations, np.int64) for _ in range(3)))
    num_contexts = _lay_out(inputs, sizes, contexts, rows, parts, part_of)
    messages = messages_of(inputs.move_tables, sizes)
    scene = _empty_scene(inputs, parts, part_of, rows, messages, num_contexts)
    num_gates = len(inputs.gates.kind)
    places = ScenePlaces(
        follower=rows.follower.copy(),
        on_event=rows.on_event.copy(),
        queued=rows.queued.copy(),
        counts=np.zeros((num_operations + num_gates, 2), np.int64),
    )
    _fill(inputs, sizes, messages, contexts, places, scene)
    return scene


def _empty_scene(  # noqa: PLR0917 - as its compiled neighbours
    inputs: SceneInputs, parts: Records, part_of: Integers, rows: SceneRows, messages: Messages, num_contexts: int
) -> Scene:
    """Return the scene with tables that are yet to be filled in."""
    operations, program, num_ranks = inputs.operations, inputs.program, len(inputs.trains)
    num_gates, num_followers = len(inputs.gates.kind), rows.follower[-1]
    return Scene(
        network=inputs.network,
        times=inputs.times,
        num_lanes=inputs.num_lanes,
        num_gates=num_gates,
        num_events=program.num_events,
        lane_width=inputs.lane_width,
        trains=inputs.trains,
        is_transfer=operations.is_transfer,
        lane=operations.lane,
        priority=operations.priority,
        urgency=operations.message,
        every=operations.every,
        phase=inputs.phase,
        parts=parts,
        takes=_takes(messages),
        channels=np.empty(len(messages.channel_source), CHANNEL),
        # If one node represents all, each rank has also connections to the next node and to the one before.
        lines=np.empty((3 if inputs.is_one_node else 1) * num_contexts * num_ranks * num_ranks, LINE),
        message_bytes=messages.message_bytes,
        first_post=messages.first_post,
        post_channel=messages.post_channel,
        part_of=part_of,
        first_follower=rows.follower,
        follower=np.empty(num_followers, np.int64),
        follower_lag=np.empty(num_followers, np.int64),
        num_waits=np.zeros(len(parts) + num_gates * num_ranks, np.int64),
        first_on_event=rows.on_event,
        on_event=np.empty(rows.on_event[-1], np.int64),
        first_queued=rows.queued,
        queued=np.empty(rows.queued[-1], np.int64),
        program=program.step,
        program_argument=program.argument,
        program_seconds=program.seconds,
    )


def _first_parts(inputs: SceneInputs) -> Integers:
    """Return the first part of each operation, which has one for each member of its groups; and the number of parts."""
    shapes, tables = inputs.operations.shape, inputs.move_tables
    first = tables.group_first[tables.first_group]
    found = np.zeros(len(shapes) + 1, np.int64)
    np.cumsum(first[shapes + 1] - first[shapes], out=found[1:])
    return found


def _takes(messages: Messages) -> Records:
    takes = np.empty(len(messages.take_channel), TAKE)
    takes["channel"], takes["ordinal"] = messages.take_channel, messages.take_ordinal
    takes["added_bytes"] = messages.take_added_bytes
    return takes


@borrows_elements
def _lay_out(  # noqa: PLR0917 - numba has no keywords
    inputs: SceneInputs,
    sizes: TransferSizes,
    contexts: SceneContexts,
    rows: SceneRows,
    parts: Records,
    part_of: Integers,
) -> int:
    """Enter the parts, count the rows of other tables, and return the number of contexts."""
    _enter_parts(inputs, sizes.first_part, parts, part_of)
    count_edges(inputs, rows)
    _count_queued(inputs, parts, rows.queued)
    for begins in (rows.follower, rows.on_event, rows.queued):
        for row in range(1, len(begins)):
            begins[row] += begins[row - 1]
    return _enter_contexts(inputs, contexts)


@borrows_elements
def _fill(  # noqa: PLR0917 - numba has no keywords
    inputs: SceneInputs,
    sizes: TransferSizes,
    messages: Messages,
    contexts: SceneContexts,
    places: ScenePlaces,
    scene: Scene,
) -> None:
    """Fill in all tables of a scene but those of parts and messages."""
    _add_messages(inputs, scene.parts, scene.takes, messages, sizes.is_short)
    _enter_channels(inputs, scene, messages, contexts.of_operation)
    _enter_lines(inputs, scene.lines)
    enter_edges(inputs, places, scene)
    enter_waits(inputs, places.counts, scene)
    _enter_queued(inputs, places.queued, scene)


@borrows_inner
def _enter_parts(inputs: SceneInputs, first_part: Integers, parts: Records, part_of: Integers) -> None:
    operations, tables = inputs.operations, inputs.move_tables
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


@borrows_inner
def _add_messages(inputs: SceneInputs, parts: Records, takes: Records, messages: Messages, is_short: Flags) -> None:
    """Enter the messages that parts take and post."""
    for part in range(len(parts)):
        parts[part].first_take = messages.first_take[part]
        parts[part].num_takes = messages.first_take[part + 1] - messages.first_take[part]
        parts[part].num_posts, parts[part].breadth = messages.num_posts[part], messages.breadth[part]
        parts[part].num_first = messages.num_first[part]
        _look_ahead(inputs, parts[part], messages, is_short[parts[part].operation])
        share = inputs.added_share[parts[part].operation]
        if share != 1.0:
            for take in range(parts[part].first_take, parts[part].first_take + parts[part].num_takes):
                takes[take].added_bytes *= share


@borrows_inner
def _look_ahead(inputs: SceneInputs, part: Any, messages: Messages, is_short: bool) -> None:  # noqa: FBT001 - numba has no keyword-only ones
    """Enter how far ahead a part requests messages, and whether before its turn, as `wire.flow_control` does."""
    is_native, tables = inputs.is_native[part.operation], inputs.move_tables
    longest, total = 1.0, 0.0
    for take in range(part.first_take, part.first_take + part.num_takes):
        first = messages.first_message[messages.take_channel[take]]
        taken = messages.message_bytes[first + messages.take_ordinal[take]]
        longest, total = max(longest, taken), total + taken
    usual, group = longest, tables.first_group[inputs.operations.shape[part.operation]]
    if part.num_takes > 0 and tables.kind[tables.template[group]] == IN_WAVES:
        usual = max(1.0, total / part.num_takes)
    num_bytes = AHEAD_BYTES if is_short else FREE_AHEAD_BYTES
    part.ahead = LEAST_AHEAD if is_native else max(LEAST_AHEAD, int(num_bytes / usual))
    part.waits_its_turn = is_native or part.num_first > 0 or part.num_takes + part.num_posts == 0


@borrows_inner
def _enter_contexts(inputs: SceneInputs, contexts: SceneContexts) -> int:
    """Enter the context of each operation; return the number of contexts."""
    operations, count = inputs.operations, 0
    for number, shape in enumerate(operations.shape):
        if not inputs.is_native[number]:
            continue
        for known in range(count + 1):
            if known == count:
                contexts.shape[count], contexts.lane[count] = shape, operations.lane[number]
                count += 1
            if contexts.shape[known] == shape and contexts.lane[known] == operations.lane[number]:
                contexts.of_operation[number] = known + 1
                break
    return count + 1


@borrows_inner
def _enter_channels(inputs: SceneInputs, scene: Scene, messages: Messages, context: Integers) -> None:
    """Enter the channels, and the connections that they use."""
    num_ranks, parts = len(inputs.trains), scene.parts
    num_contexts = len(scene.lines) // (num_ranks * num_ranks * (3 if inputs.is_one_node else 1))
    for channel in range(len(scene.channels)):
        one, source, destination = (
            scene.channels[channel],
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


@borrows_inner
def _enter_lines(inputs: SceneInputs, lines: Records) -> None:
    """Enter the link and the queues of each connection."""
    num_ranks, network = len(inputs.trains), inputs.network
    num_nodes = len(network.rack)
    num_here = len(lines) // 3 if inputs.is_one_node else len(lines)
    for line in range(len(lines)):
        one = lines[line]
        sender, is_there = line // num_ranks % num_ranks, line >= num_here
        start, end = network.node[sender], network.node[line % num_ranks]
        one.link, one.queue, one.rack_out, one.rack_in, one.inner_out, one.inner_in = start, end, -1, -1, -1, -1
        if start == end and not is_there:
            one.link, one.queue, one.rack_out = num_nodes + sender, -1, network.bus[start]
        elif network.rack[start] != network.rack[end]:
            if network.rack[start] >= 0:
                one.rack_out = num_nodes + network.rack[start]
            if network.rack[end] >= 0:
                one.rack_in = num_nodes + network.num_racks + network.rack[end]
        else:
            one.rack_out, one.rack_in = network.bus[start], network.bus[end]
        if network.inner_rack[start] != network.inner_rack[end]:
            if network.inner_rack[start] >= 0:
                one.inner_out = num_nodes + network.inner_rack[start]
            if network.inner_rack[end] >= 0:
                one.inner_in = num_nodes + network.num_racks + network.inner_rack[end]
        one.has_more = max(one.rack_out, one.rack_in, one.inner_out, one.inner_in) >= 0


@borrows_inner
def _count_queued(inputs: SceneInputs, parts: Records, begins: Integers) -> None:
    operations = inputs.operations
    for part in range(len(parts)):
        if operations.is_transfer[parts[part].operation]:
            begins[parts[part].rank * inputs.num_lanes + operations.lane[parts[part].operation] + 1] += 1


@borrows_inner
def _enter_queued(inputs: SceneInputs, place: Integers, scene: Scene) -> None:
    """Enter the transfers of each rank and lane, in the plan's order."""
    operations, parts = inputs.operations, scene.parts
    for part in range(len(parts)):
        if operations.is_transfer[parts[part].operation]:
            queue = parts[part].rank * inputs.num_lanes + operations.lane[parts[part].operation]
            scene.queued[place[queue]] = part
            place[queue] += 1
