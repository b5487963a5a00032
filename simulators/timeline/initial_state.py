"""The initial state of the timeline's kernel. Filled in by compiled functions."""

from __future__ import annotations

import numpy as np

from autosync.simulators.jit import borrows_elements, borrows_inner
from autosync.simulators.timeline.scene import (
    CHANNEL_STATE,
    DUE,
    ENTRY,
    LANE_STATE,
    LINE_STATE,
    LINK_STATE,
    MESSAGE_STATE,
    PART_STATE,
    QUEUE_STATE,
    RANK_STATE,
    Heap,
    PlayState,
    Scene,
)


def initial_state(scene: Scene, num_iterations: int) -> PlayState:
    """Return the state from which iterations are simulated.

    The arrays are made here, because numba compiles for far longer where a function makes arrays itself.
    """
    num_ranks, num_parts, num_lines = len(scene.trains), len(scene.parts), len(scene.lines)
    num_items = num_parts + num_ranks * scene.num_gates
    most_on_a_link = int(np.bincount(scene.lines["link"]).max(initial=0))
    # Upper limits for entries in queues and for upcoming events. Steps may take no time at all: then the events of all
    # of them happen at one moment, but no more are upcoming at a time.
    num_entries = 4 * len(scene.message_bytes) + 4 * len(scene.channels) + 64
    num_events = 2 * num_entries + 2 * num_parts + num_ranks * (8 + 3 * scene.num_lanes + len(scene.program)) + 64
    state = PlayState(
        num_iterations=num_iterations,
        num_items=num_items,
        heap=Heap(np.full(1, -1.0), np.empty(num_events, DUE), np.empty(num_events, np.int64), np.zeros(4, np.int64)),
        unmet=np.zeros((num_iterations, num_items), np.int64),
        begun=np.full((num_iterations, num_parts), np.nan),
        ended=np.full((num_iterations, num_parts), np.nan),
        step_ends=np.full((num_iterations, num_ranks), np.nan),
        ready=np.empty((num_ranks, num_iterations * len(scene.is_transfer) + 1), np.int64),
        parts=np.zeros(num_parts, PART_STATE),
        channels=np.zeros(len(scene.channels), CHANNEL_STATE),
        messages=np.empty(len(scene.message_bytes), MESSAGE_STATE),
        lines=np.zeros(num_lines, LINE_STATE),
        links=np.zeros(len(scene.network.link_rate), LINK_STATE),
        queues=np.zeros(len(scene.network.queue_rate), QUEUE_STATE),
        lanes=np.zeros(num_ranks * scene.num_lanes, LANE_STATE),
        ranks=np.zeros(num_ranks, RANK_STATE),
        entries=np.empty(num_entries, ENTRY),
        free_entry=np.zeros(2, np.int64),
        active=np.empty((len(scene.network.link_rate), most_on_a_link + 1), np.int64),
        processor_free=np.zeros(scene.times.num_processors),
        passed=np.full((num_iterations, num_ranks, len(scene.program)), np.nan),
    )
    _lay_out(scene, state)
    return state


@borrows_elements
def _lay_out(scene: Scene, state: PlayState) -> None:
    """Fill in what is not zero at rest: links and lanes, the waits of items, and local work that waits for nothing."""
    _lay_out_links(scene, state)
    _count_waits(scene, state)
    for iteration in range(state.num_iterations):
        for part in range(len(scene.parts)):
            operation, rank = scene.parts[part].operation, scene.parts[part].rank
            is_free = state.unmet[iteration, part] == 0 and not scene.is_transfer[operation]
            # What waits for an average only is free where that is not due, but it is not due either.
            if is_free and is_due(scene, iteration, operation):
                state.ready[rank, state.ranks[rank].num_ready] = iteration * state.num_items + part
                state.ranks[rank].num_ready += 1


@borrows_inner
def _lay_out_links(scene: Scene, state: PlayState) -> None:
    for line in range(len(state.lines)):
        state.lines[line].first = state.lines[line].last = -1
    for link in range(len(state.links)):
        ours = state.links[link]
        ours.nearest = ours.due = ours.planned = np.inf
    for queue in range(len(state.queues)):
        state.queues[queue].backlog = -scene.network.queue_burst[queue]
    for lane in range(len(state.lanes)):
        state.lanes[lane].head, state.lanes[lane].priority = scene.first_queued[lane], -1
        state.lanes[lane].part, state.lanes[lane].coming = -1, scene.first_queued[lane]
    for rank in range(len(state.ranks)):
        state.ranks[rank].works_on, state.ranks[rank].until = -1, np.inf


@borrows_inner
def _count_waits(scene: Scene, state: PlayState) -> None:
    """Count the waits of each item. Early iterations have fewer, as have those in which some operations are not due."""
    longest, always = 0, True
    for lag in scene.follower_lag:
        longest = max(longest, lag)
    for every in scene.every:
        always &= every == 1
    for iteration in range(state.num_iterations):
        if always and iteration > longest:
            # Copied one by one: numba would compile much more for copies of whole rows.
            for item in range(state.num_items):
                state.unmet[iteration, item] = state.unmet[iteration - 1, item]
        else:
            _count_waits_of(scene, state, iteration)


@borrows_inner
def _count_waits_of(scene: Scene, state: PlayState, iteration: int) -> None:
    for item in range(state.num_items):
        state.unmet[iteration, item] = scene.num_waits[item]
    num_ranks = len(scene.trains)
    for part in range(len(scene.parts)):
        operation, rank = scene.parts[part].operation, scene.parts[part].rank
        for position in range(scene.first_follower[operation], scene.first_follower[operation + 1]):
            item, before = item_of(scene, scene.follower[position], rank, num_ranks), scene.follower_lag[position]
            if item >= 0 and iteration >= before and is_due(scene, iteration - before, operation):
                state.unmet[iteration, item] += 1


@borrows_inner
def item_of(scene: Scene, what: int, rank: int, num_ranks: int) -> int:
    """Return the item of an operation or a gate on a rank; -1 if it has none there.

    `what` is the number of an operation, or of a gate behind all operations.
    """
    num_operations = len(scene.is_transfer)
    if what < num_operations:
        return int(scene.part_of[what, rank])
    if not scene.trains[rank]:
        return -1
    return int(len(scene.parts) + (what - num_operations) * num_ranks + rank)


@borrows_inner
def is_due(scene: Scene, iteration: int, operation: int) -> bool:
    every = scene.every[operation]
    # Nearly always; a division takes longer than all else here.
    return bool(every == 1 or (iteration + 1 + scene.phase[operation]) % every == 0)
