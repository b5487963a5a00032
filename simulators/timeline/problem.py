"""What the timeline's kernel is given: a plan's instances, what they wait for and what they cost, as flat arrays.

An *item* is an instance of an operation or, after these, a gate of a class of ranks; both wait. An *event* is something
that training does: a variable's gradient is ready, the step is called, the user's optimizer has updated.
Tables of several things for each row are told by two arrays: row i has entries `first[i]` to `first[i + 1]`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

COMPUTE, WAIT, EVENT, STEP_ENDS, WORK = range(5)
"""What training does next: takes its time, waits at a gate, makes something happen, ends an iteration, or works for the
engine on a processor."""


class Program(NamedTuple):
    """An iteration of training: what is done next, about which gate or event, for how long.

    Events are the gradients of variables, by position, then these two.
    """

    num_events: int
    step_called: int
    user_updated: int
    step: Integers
    argument: Integers
    seconds: Floats


class Problem(NamedTuple):
    """A plan to simulate.

    - classes of ranks: `trains` those with workers;
    - instances: `is_transfer`, `seconds` (of local work; of a transfer, before its bytes
      flow), `fastest` (seconds that its bytes take with all links to itself), `urgency` (a transfer's priority, local
      work's message), `every`, `lane`, and their members and uses of links; members that only send go on with their
      lane when no more than the share `leave_at` is left, for the rest is with the receivers' systems;
    - items: how much of the same iteration they wait for (`num_waits`), and who waits for them how many iterations on;
    - events of a class: `class * num_events + event`, and the items that wait for them;
    - queues: the operations of a class in a lane, in the plan's order, at `class * num_lanes + lane`; an operation's
      instances are those from `first_instance` on;
    - training: the program of an iteration, the same for all classes; a gate's item is
      `num_instances + class * num_gates + gate`;
    - `capacity`: bytes a second of each link.
    """

    trains: Flags
    num_lanes: int
    num_gates: int
    num_events: int
    is_transfer: Flags
    seconds: Floats
    fastest: Floats
    urgency: Integers
    every: Integers
    lane: Integers
    leave_at: Floats
    first_member: Integers
    member: Integers
    only_sends: Flags
    first_use: Integers
    use_link: Integers
    use_bytes: Floats
    use_connections: Floats
    num_waits: Integers
    first_waiting: Integers
    waiting: Integers
    waiting_lag: Integers
    first_on_event: Integers
    on_event: Integers
    first_queued: Integers
    queued: Integers
    first_instance: Integers
    program: Integers
    program_argument: Integers
    program_seconds: Floats
    capacity: Floats


class State(NamedTuple):
    """Where a simulation stands; arrays of one element are numbers that change.

    - items by iteration: what they still wait for, on how many members they are next, when they began and ended;
    - queues: their `head` (a position in `Problem.queued`), its iteration, and how many of its instances the class is
      not done with;
    - training by class: until when it computes, whether it looks what to do next, where in the program it is;
    - local work by class: on what and until when, and what else is ready;
    - transfers under way: from when on their bytes flow, what share is left, and at what rate it shrinks;
    - `todo`: what is over or has happened at this moment and has not been told yet.
    """

    num_iterations: int
    num_items: int
    now: Floats
    unmet: npt.NDArray[np.int64]
    num_met: npt.NDArray[np.int64]
    begun: Floats
    ended: Floats
    step_ends: Floats
    head: Integers
    head_iteration: Integers
    num_under_way: Integers
    trains_until: Floats
    resumes: Flags
    at: Integers
    iteration: Integers
    class_ends: Floats
    works_until: Floats
    works_on: Integers
    ready: Integers
    num_ready: Integers
    active: Integers
    flows_from: Floats
    left: Floats
    senders_left: Flags
    rate: Floats
    num_active: Integers
    todo: Integers
    num_todo: Integers


class Outcome(NamedTuple):
    """What happened: when steps ended, and by iteration when each instance began and ended (NaN: never)."""

    step_ends: Floats
    begun: Floats
    ended: Floats
