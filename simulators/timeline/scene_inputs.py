"""The inputs of scenes, and the tables that are used while they are made."""

from __future__ import annotations

from typing import NamedTuple

from autosync.plan.tables import Gates, Operations
from autosync.simulators.shared.arrays import Flags, Floats, Integers
from autosync.simulators.timeline.move_tables import MoveTables
from autosync.simulators.timeline.scene import NetworkLinks, Times
from autosync.simulators.timeline.training_program import Program


class SceneInputs(NamedTuple):
    """The inputs of a scene.

    For each operation, `local_work` is the processor time of local work on all its elements, and `local_seconds` its
    time without a processor. `added_share` is the share of received bytes that one core adds up. `by_users` marks the
    updates that the user's optimizer makes while training computes. `lane_width` is the number of transfers of a lane
    that run at a time. `is_one_node`: the ranks are those of a node that represents all.
    `phase`: see `Scene`.
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
    phase: Integers


class SceneRows(NamedTuple):
    """Where the rows of each thing begin in other tables: first counted, then summed up.

    The followers of operations, the items that wait for events, and the transfers of lanes.
    """

    follower: Integers
    on_event: Integers
    queued: Integers


class SceneContexts(NamedTuple):
    """The context of each operation, and the shape and the lane of each context but the first.

    Native collectives of the same groups in the same lane have connections of their own, and so their own context.
    """

    of_operation: Integers
    shape: Integers
    lane: Integers


class ScenePlaces(NamedTuple):
    """The next free rows in the tables of followers, events and lanes, and the events that an item waits for."""

    follower: Integers
    on_event: Integers
    queued: Integers
    counts: Integers
