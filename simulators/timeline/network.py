"""What the event-driven kernel is given and where it stands, as tables of records; see `events`."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from autosync.simulators.timeline.problem import Flags, Floats, Integers

Records: TypeAlias = npt.NDArray[Any]
"""An array with named fields."""


def _record(integers: str, floats: str = "", flags: str = "") -> np.dtype[Any]:
    fields: list[tuple[str, type[np.generic]]] = [(name, np.int64) for name in integers.split()]
    fields += [(name, np.float64) for name in floats.split()]
    return np.dtype([*fields, *((name, np.bool_) for name in flags.split())])


PART = _record(
    "operation rank first_take num_takes num_posts breadth ahead num_first", "work seconds", "waits_its_turn"
)
"""What one rank does of an operation. `work` is processor time, `seconds` what passes after it. Of a transfer it takes
`num_takes` messages, from `first_take` on in the table of takes, and posts `num_posts`. `breadth` is from how many it
takes at a time; 0 where gloo itself does it, which asks for two segments at a time. So many more it asks for `ahead`.
Until it has taken `num_first` it asks for no others. What does not wait for its turn is asked for before it."""

TAKE = _record("channel ordinal", "added_bytes")
"""What a part takes next: the how manieth message of which channel, and the bytes of it that are added up."""

CHANNEL = _record("source destination first_message num_messages line back is_native")
"""Messages of a transfer from one part to another, over one connection; requests for them come over another."""

LINE = _record("link queue rack_out rack_in")
"""A connection: the link on which it begins and the queues that it goes through (-1: none)."""

PART_STATE = _record("iteration runs step asked post num_sent", "", "is_busy is_open")
CHANNEL_STATE = _record("posted credit sent arrived")
LINE_STATE = _record("first last", "num_bytes target arrives")
LINK_STATE = _record("num_active", "served since due")
QUEUE_STATE = _record("", "inflow backlog since")
LANE_STATE = _record("head iteration num_under_way priority")
RANK_STATE = _record("at iteration works_on num_ready", "until pace python_free left")
DUE = _record("what", "time")
ENTRY = _record("channel next", "num_bytes", "is_counted")


class Times(NamedTuple):
    """Seconds, and bytes, that do not depend on links; see `costs`. Pairs are of the engine's and of native messages.

    `ask`, `post`, `asked`, `arrived` and `taken` are processor time of each message: of whoever asks for it and of
    whoever posts it, of its sender's connection when it is asked for, of its receiver's, and of whoever takes it.
    `num_processors` are everybody's together; 0: nobody waits for one.
    """

    latency: float
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


class Network(NamedTuple):
    """Links between ranks.

    By rank its node. By link (out of each node, then of each rank to others of its node): bytes a second, and what
    passes at once after a pause. By queue (into each node, then out of and into each rack) the same. By node its rack,
    -1: none.
    """

    node: Integers
    rack: Integers
    num_racks: int
    link_rate: Floats
    link_burst: Floats
    queue_rate: Floats
    queue_burst: Floats


class Scene(NamedTuple):
    """A plan to simulate; `program` is of steps, arguments and seconds, `part_of` by operation and rank (-1: none)."""

    network: Network
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


class Heap(NamedTuple):
    """What is about to happen, by time, and what happens now: `counts` are how many of the first there are, and where
    the latter begin and end."""

    now: Floats
    entries: Records
    soon: Integers
    counts: Integers


class State(NamedTuple):
    """Where a simulation stands; arrays of one element are numbers that change."""

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
    """What happened: when steps ended; by iteration when each part began and ended, and when each rank had passed each
    step of its program (NaN: never)."""

    step_ends: Floats
    begun: Floats
    ended: Floats
    passed: Floats
