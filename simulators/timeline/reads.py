"""The reads of input pipelines in the timeline: transfers from storage, beside those of a plan.

Each rank gets its examples from a storage rank of its own. The storage ranks of a node share one link, which has the
rate at which storage serves the node; behind it, reads pass uplinks and the node's interface like all messages. A
worker is a lane that reads a batch and then makes it, and every n-th batch is that of the same one of n workers. A
worker may begin a batch when the rank has taken another one, and training waits at a gate until its batch is made.
Without workers the rank reads when its last step is done, and makes the batch itself.

These transfers have the priority `UNRULED`: the engine's rules of who requests how much do not hold for them. Who goes
first on a rank's links is a setting of their own (`right_of_way`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from autosync.plan.tables import ALGORITHMS, COLLECTIVES, EVENTS, Edges, Gates, Operations, Shape
from autosync.simulators.shared.arrays import Flags, Floats, Integers
from autosync.simulators.shared.reads import Reads
from autosync.simulators.timeline.scene import (
    GRADIENTS_FIRST,
    READS_FIRST,
    SHARED,
    UNRULED,
    NetworkLinks,
    Scene,
)
from autosync.simulators.timeline.scene_inputs import SceneInputs
from autosync.simulators.timeline.steady_state import LONGEST_LAG
from autosync.simulators.timeline.training_program import WAIT, WORK, Program
from autosync.simulators.timeline.transfer_sizes import PIECE_BYTES
from autosync.specs.input_settings import RightOfWay

_MOST_LANES = LONGEST_LAG - 1
"""The largest number of workers that are simulated one by one. More are simulated as so many faster ones."""

_SLICE_SECONDS = 1.4e-3
_MOST_SLICES = 16
_ENDLESS_RATE = 1e15
_RIGHTS_OF_WAY: Mapping[RightOfWay, int] = {"shared": SHARED, "gradients": GRADIENTS_FIRST, "reads": READS_FIRST}
_SEND, _STAR, _OPERATION = COLLECTIVES.index("send"), ALGORITHMS.index("star"), EVENTS.index("operation")


def lanes_of(reads: Reads) -> int:
    """Return the number of lanes that read."""
    return min(max(reads.settings.num_workers, 1), _MOST_LANES)


def slices_of(reads: Reads) -> int:
    """Return the number of pieces of the work of a batch, between which others may use the processor."""
    longest = max(reads.work_seconds) if reads.settings.num_workers > 0 else 0.0
    return min(math.ceil(longest / _SLICE_SECONDS), _MOST_SLICES)


def num_messages_of(reads: Reads) -> int:
    """Return about how many messages the reads of a step are."""
    return sum(max(1, -(-size // PIECE_BYTES)) for size in reads.num_bytes)


def _num_ahead(reads: Reads) -> int:
    """Return the number of batches that are made ahead of the one that is taken."""
    return lanes_of(reads) * reads.settings.prefetch_factor if reads.settings.num_workers > 0 else 0


class _Row(NamedTuple):
    """One operation: it moves a batch, makes a part of one, or (`taken`) tells that a step has ended."""

    groups: tuple[tuple[int, ...], ...]
    num_bytes: int
    lane: int
    every: int
    phase: int
    after: tuple[tuple[int, int], ...]
    """Operations, counted from the first row, and their lags."""
    is_taken: bool = False


class ReadTables(NamedTuple):
    """The operations that reads add to a plan, whose first number is that of the plan's operations.

    `last` are the rows that end a batch.
    """

    rows: tuple[_Row, ...]
    last: tuple[int, ...]

    @property
    def shapes(self) -> list[Shape]:
        """The shape of each row."""
        return [Shape("send", "star", row.groups) for row in self.rows]


def tables_of_reads(reads: Reads, num_ranks: int, num_lanes: int) -> ReadTables:
    """Return the operations of reads beside a plan with so many ranks and lanes. Storage ranks are those behind them.

    The first lane that is added is the one that tells the ends of steps; the others are workers.
    """
    workers = range(len(reads.num_bytes))
    taken = _Row(tuple((rank,) for rank in workers), 1, num_lanes, 1, 0, (), is_taken=True)
    rows, last = [taken], list[int]()
    ahead = min(_num_ahead(reads) + 1, LONGEST_LAG)
    for lane in range(lanes_of(reads)):
        for ranks in reads.classes():
            where = (num_lanes + 1 + lane, lanes_of(reads), lane)
            size = reads.num_bytes[ranks[0]]
            first = len(rows)
            before: tuple[tuple[int, int], ...] = ((0, ahead),)
            if size:
                groups = tuple((num_ranks + rank, rank) for rank in ranks)
                before = _added(rows, _Row(groups, size, *where, before))
            for _ in range(slices_of(reads)):
                before = _added(rows, _Row(tuple((rank,) for rank in ranks), 1, *where, before))
            if len(rows) == first:
                continue
            # A lane may let transfers overlap. Those of a worker do not, and neither do those of its storage.
            waits = {first, len(rows) - 1}
            rows[first] = rows[first]._replace(
                after=(*rows[first].after, *((row, lanes_of(reads)) for row in sorted(waits)))
            )
            last.append(len(rows) - 1)
    return ReadTables(tuple(rows), tuple(last))


def _added(rows: list[_Row], row: _Row) -> tuple[tuple[int, int], ...]:
    """Add a row; return the wait for it."""
    rows.append(row)
    return ((len(rows) - 1, 0),)


def with_reads(inputs: SceneInputs, reads: Reads, tables: ReadTables, shapes: Integers) -> SceneInputs:
    """Return the inputs of a scene with reads. `shapes` are the numbers of the rows' shapes."""
    first, count = len(inputs.operations.shape), len(tables.rows)
    zeros = np.zeros(count)
    return inputs._replace(
        operations=_with_rows(inputs.operations, tables, shapes),
        gates=_with_gate(inputs.gates, [first + row for row in tables.last]),
        num_lanes=inputs.num_lanes + 1 + lanes_of(reads),
        network=_with_storage(inputs.network, reads),
        trains=np.concatenate([inputs.trains, np.zeros(len(reads.num_bytes), np.bool_)]),
        program=_with_wait(inputs.program, len(inputs.gates.kind), reads),
        local_work=np.concatenate([inputs.local_work, zeros]),
        local_seconds=np.concatenate([inputs.local_seconds, zeros]),
        added_share=np.concatenate([inputs.added_share, zeros + 1.0]),
        by_users=np.concatenate([inputs.by_users, _flags([row.is_taken for row in tables.rows])]),
        is_native=np.concatenate([inputs.is_native, _flags([len(row.groups[0]) > 1 for row in tables.rows])]),
        phase=np.array([*np.zeros(first, np.int64), *(row.phase for row in tables.rows)], dtype=np.int64),
    )


def timed(scene: Scene, reads: Reads, tables: ReadTables) -> Scene:
    """Return the scene with the windows of reads, their right of way, and the times in which batches are made."""
    first = len(scene.is_transfer) - len(tables.rows)
    parts, lanes = scene.parts, lanes_of(reads)
    request = min(float(reads.settings.read_bytes), max(reads.example_bytes, 1.0))
    for number, row in enumerate(tables.rows):
        for rank in [rank for group in row.groups for rank in group]:
            part = parts[scene.part_of[first + number, rank]]
            part["work"] = 0.0
            if row.is_taken:
                continue
            if len(row.groups[0]) == 1:
                # Workers that are not simulated one by one are as much faster as they are more.
                seconds = reads.work_seconds[rank] * lanes / reads.settings.num_workers
                part["work"] = seconds / slices_of(reads) * reads.processor_share
                part["seconds"] = seconds / slices_of(reads) * (1 - reads.processor_share)
            elif part["num_takes"]:
                piece = row.num_bytes / part["num_takes"]
                wanted = reads.settings.read_concurrency * request * max(reads.settings.num_workers, 1) / lanes
                part["ahead"] = max(math.ceil(wanted / piece), 1) - int(part["breadth"])
    if reads.settings.num_workers == 0:
        # The step after the wait is the rank's own work.
        scene.program_seconds[: len(reads.work_seconds), 1] = reads.work_seconds
    return scene._replace(right_of_way=_RIGHTS_OF_WAY[reads.settings.right_of_way])


def num_last_steps(scene: Scene) -> int:
    """Return the number of last steps that do not count: in these, batches of later steps are not read any more."""
    longest = int(scene.follower_lag.max(initial=0))
    return min(longest, LONGEST_LAG) if longest > 1 and (scene.priority == UNRULED).any() else 0


def _with_rows(operations: Operations, tables: ReadTables, shapes: Integers) -> Operations:
    rows, first = tables.rows, len(operations.shape)
    columns: Mapping[str, Sequence[int]] = {
        "kind": [_SEND] * len(rows),
        "algorithm": [_STAR] * len(rows),
        "num_elements": [row.num_bytes for row in rows],
        "item_bytes": [1] * len(rows),
        "lane": [row.lane for row in rows],
        "priority": [UNRULED] * len(rows),
        "message": [0] * len(rows),
        "every": [row.every for row in rows],
        "cost": [0] * len(rows),
    }
    added: dict[str, Integers] = {
        name: np.concatenate([getattr(operations, name), np.array(values, dtype=np.int64)])
        for name, values in columns.items()
    }
    edges = [[(first + target, lag) for target, lag in row.after] for row in rows]
    return operations._replace(
        is_transfer=np.concatenate([operations.is_transfer, _flags([True] * len(rows))]),
        sharded=np.concatenate([operations.sharded, _flags([False] * len(rows))]),
        shape=np.concatenate([operations.shape, shapes]),
        after=_with_edges(operations.after, edges),
        kind=added["kind"],
        algorithm=added["algorithm"],
        num_elements=added["num_elements"],
        item_bytes=added["item_bytes"],
        lane=added["lane"],
        priority=added["priority"],
        message=added["message"],
        every=added["every"],
        cost=added["cost"],
    )


def _with_gate(gates: Gates, operations: Sequence[int]) -> Gates:
    edges = _with_edges(gates.after, [[(operation, 0) for operation in operations]])
    return Gates(np.append(gates.kind, -1), np.append(gates.variable, -1), edges)


def _with_edges(edges: Edges, rows: Sequence[Sequence[tuple[int, int]]]) -> Edges:
    flat = [edge for row in rows for edge in row]
    ends = edges.first[-1] + np.cumsum([len(row) for row in rows])
    return Edges(
        np.concatenate([edges.first, ends]).astype(np.int64),
        np.concatenate([edges.event, np.full(len(flat), _OPERATION, np.int64)]),
        np.concatenate([edges.target, np.array([target for target, _ in flat], dtype=np.int64)]),
        np.concatenate([edges.lag, np.array([lag for _, lag in flat], dtype=np.int64)]),
    )


def _with_wait(program: Program, gate: int, reads: Reads) -> Program:
    """Return the program that begins with a wait for the batch; without workers, the rank then makes it."""
    steps = [WAIT, WORK] if reads.settings.num_workers == 0 else [WAIT]
    arguments = [gate, 0][: len(steps)]
    return program._replace(
        step=np.concatenate([np.array(steps, dtype=np.int64), program.step]),
        argument=np.concatenate([np.array(arguments, dtype=np.int64), program.argument]),
        seconds=np.concatenate([np.zeros(len(steps)), program.seconds]),
    )


def _with_storage(network: NetworkLinks, reads: Reads) -> NetworkLinks:
    """Return the network with a node of storage for each node, outside racks, and the storage ranks on them."""
    num_nodes, num_ranks = len(network.rack), len(network.node)
    into = network.queue_rate[:num_nodes]
    rates = np.array([own if rate is None else rate for rate, own in zip(reads.rates, into, strict=True)])
    outside = np.full(num_nodes, -1, np.int64)
    buses = np.where(network.bus >= 0, network.bus + num_nodes, -1)
    readers = network.node[: len(reads.num_bytes)]

    def links(old: Floats, of_nodes: Floats, of_ranks: float) -> Floats:
        parts = [old[:num_nodes], of_nodes, old[num_nodes:], np.full(len(readers), of_ranks)]
        return np.concatenate(parts)

    def queues(old: Floats, of_nodes: float) -> Floats:
        return np.concatenate([old[:num_nodes], np.full(num_nodes, of_nodes), old[num_nodes:]])

    assert num_ranks >= len(readers), "workers come first"
    return NetworkLinks(
        node=np.concatenate([network.node, num_nodes + readers]),
        rack=np.concatenate([network.rack, outside]),
        inner_rack=np.concatenate([network.inner_rack, outside]),
        num_racks=network.num_racks,
        bus=np.concatenate([buses, outside]),
        link_rate=links(network.link_rate, rates, _ENDLESS_RATE),
        link_burst=links(network.link_burst, np.zeros(num_nodes), 0.0),
        link_flow=links(network.link_flow, np.full(num_nodes, np.inf), np.inf),
        queue_rate=queues(network.queue_rate, _ENDLESS_RATE),
        queue_burst=queues(network.queue_burst, 0.0),
    )


def _flags(values: Sequence[bool]) -> Flags:
    return np.array(values, dtype=np.bool_)
