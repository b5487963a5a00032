"""The input and the state of the timeline's kernel, as tables of records; see `kernel`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from autosync.simulators.shared.arrays import Flags, Floats, Integers, Records


def _record(integers: str, floats: str = "", flags: str = "", *, places: str = "") -> np.dtype[Any]:
    """Return the type of a table's rows. `places` are positions and counts, which are never negative.

    As numbers without a sign they are faster: for each index with a sign, compiled code counts from the end if it is
    negative.
    """
    fields: list[tuple[str, type[np.generic]]] = [(name, np.uint32) for name in places.split()]
    fields += [(name, np.int64) for name in integers.split()]
    fields += [(name, np.float64) for name in floats.split()]
    return np.dtype([*fields, *((name, np.bool_) for name in flags.split())])


PART = _record(
    "ahead",
    "work seconds",
    "waits_its_turn",
    places="operation rank first_take num_takes num_posts breadth num_first",
)
"""One rank's part of an operation: `work` of a processor, then `seconds` that pass without one.

In a transfer it takes `num_takes` messages, from `first_take` on in the table of takes, and posts `num_posts`. It takes
from `breadth` members at a time and requests `ahead` more messages. `breadth` is 0 in gloo's own collectives, which
request two segments at a time. Before the first `num_first` messages are taken, it requests no others. Unless it waits
for its turn (`waits_its_turn`), its messages are requested while earlier transfers of the lane are under way."""

TAKE = _record("", "added_bytes", places="channel ordinal")
"""The next message that a part takes: its channel, its position in the channel, and the bytes to add up."""

CHANNEL = _record("", places="source destination first_message num_messages line back is_native")
"""The messages of a transfer from one part to another, over one connection (`line`). Their requests use another
(`back`)."""

LINE = _record("queue rack_out rack_in inner_out inner_in", "", "has_more", places="link")
"""A connection: the link on which it begins and the queues that it goes through (-1: none).

`queue` is the way into the receiving node, and `has_more` tells whether there are others. `inner_out` and `inner_in`
are those of racks within pods, which have `rack_out` and `rack_in`. Where it leaves no outermost rack, the latter are
what the ranks of its nodes share inside them.
"""

PART_STATE = _record("", "", "is_busy is_open", places="iteration runs step asked post num_sent")

CHANNEL_STATE = _record("", places="posted credit sent arrived")
"""How many messages were posted, requested, sent and received; some of these will be so at a time that is known."""

MESSAGE_STATE = _record("", "posted wanted heard")
"""When a message is posted, when its sender has read the request, and when its receiver has read the message."""

LINE_STATE = _record("first last", "num_bytes target arrives")
LINK_STATE = _record("num_active", "served since nearest due planned")
"""`nearest` is the least target of its connections. `due` is when the link has served the next message to its end, and
`planned`, no later, when its next event is."""

QUEUE_STATE = _record("", "inflow backlog since")
LANE_STATE = _record("head iteration num_under_way priority part coming num_asked")
"""`head` is the place of the next transfer. Those from there until `coming` have requested all of their messages early,
`num_asked` together."""

RANK_STATE = _record("at iteration works_on num_ready", "until pace python_free left looks_at")
DUE = _record("what", "time")
ENTRY = _record("channel next", "num_bytes", "is_counted")


UNRULED = -1
"""The priority of transfers to which the engine's rules do not apply: reads of input pipelines."""


SHARED, GRADIENTS_FIRST, READS_FIRST = range(3)
"""Who goes first where reads and messages of the engine share links."""


class Times(NamedTuple):
    """Times in seconds, and some limits in bytes, that do not depend on links; see `costs`.

    Messages travel for `latency` between nodes, and for `latency_within` within a node.

    Pairs have two figures: for the engine's messages and for native ones. A message takes processor time at five
    places: `ask` and `post` in the lanes that request and post it, `asked` in its sender's connection when the request
    comes, `arrived` in its receiver's connection, and `taken` in the lane that takes it. All ranks share
    `num_processors`; with 0, no rank waits for a processor.
    """

    latency: float
    latency_within: float
    transfer: float
    local: float
    ask: tuple[float, float]
    post: tuple[float, float]
    asked: tuple[float, float]
    arrived: tuple[float, float]
    taken: tuple[float, float]
    per_byte: tuple[float, float]
    rate_added: float
    bytes_ahead: float
    bytes_queued: float
    queued_seconds: float
    slack: float
    num_processors: int


class NetworkLinks(NamedTuple):
    """The links between ranks.

    `node` has the node of each rank, `rack` the outermost rack of each node and `inner_rack` the rack within that one
    (-1: none). The first links are the ways out of
    nodes; then come the ways from a rank to others of its node. Each link has a rate in bytes a second, a burst that
    passes at once after a pause, and the most bytes a second of one connection (`link_flow`). The first queues are the
    ways into nodes; then come the ways out of racks, the ways into racks, and what ranks share inside nodes (`bus` has
    its position for each node, -1: none). Queues have a rate and a burst too.
    """

    node: Integers
    rack: Integers
    inner_rack: Integers
    num_racks: int
    bus: Integers
    link_rate: Floats
    link_burst: Floats
    link_flow: Floats
    queue_rate: Floats
    queue_burst: Floats


class Scene(NamedTuple):
    """A plan to simulate.

    `program` has the kinds of its steps, and `program_seconds` their times on each rank, because ranks may have
    different paces. `part_of` is by operation and rank (-1: no part). An operation is done in every
    `every`-th iteration, for the first time in iteration `every - 1 - phase`.
    """

    network: NetworkLinks
    times: Times
    num_lanes: int
    num_gates: int
    num_events: int
    lane_width: int
    trains: Flags
    is_transfer: Flags
    lane: Integers
    priority: Integers
    urgency: Integers
    every: Integers
    phase: Integers
    parts: Records
    takes: Records
    channels: Records
    lines: Records
    message_bytes: Floats
    first_post: Integers
    post_channel: Integers
    part_of: Integers
    first_follower: Integers
    follower: Integers
    follower_lag: Integers
    num_waits: Integers
    first_on_event: Integers
    on_event: Integers
    first_queued: Integers
    queued: Integers
    program: Integers
    program_argument: Integers
    program_seconds: Floats
    right_of_way: int = SHARED


class Heap(NamedTuple):
    """The upcoming events by time, and those of the current moment (`soon`); see `event_queue`.

    `counts`: the entries of the heap, where `soon` begins and ends, and the most entries that the heap ever had.
    """

    now: Floats
    entries: Records
    soon: Integers
    counts: Integers


class PlayState(NamedTuple):
    """The state of a simulation. Arrays of one element are numbers that change."""

    num_iterations: int
    num_items: int
    heap: Heap
    unmet: Integers
    begun: Floats
    ended: Floats
    step_ends: Floats
    ready: Integers
    parts: Records
    channels: Records
    messages: Records
    lines: Records
    links: Records
    queues: Records
    lanes: Records
    ranks: Records
    entries: Records
    free_entry: Integers
    active: Integers
    processor_free: Floats
    passed: Floats


class Played(NamedTuple):
    """The result of a simulation.

    `step_ends` has when steps ended. `begun` and `ended` have when each part began and ended, by iteration. `passed`
    has when each rank passed each step of its program (NaN: never).
    """

    step_ends: Floats
    begun: Floats
    ended: Floats
    passed: Floats
