"""The schedule of a batch: its groups in order, where each vertex's state lies, and which rows each group reads.

States lie in the order in which they are computed, so each group writes one slice. Within a group, vertices of deep
examples come first. So in a batch of sequences each group also reads one slice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autosync.graphs.graph_batch import GraphBatch
from autosync.graphs.input_graph import Integers
from autosync.graphs.orders import ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexGroup:
    """Vertices that run together: rows `start` to `stop` of the states.

    The rows that they read are entries `read_start` to `read_stop` of the schedule's reads. If these are consecutive
    rows, `first_read` is the first of them; otherwise it is -1.
    """

    kind: str
    num_children: int
    start: int
    stop: int
    read_start: int
    read_stop: int
    first_read: int

    @property
    def num_vertices(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchSchedule:
    """The groups of a batch in order. `layout[row]` is the vertex whose state is in this row; `rows` is its inverse."""

    groups: tuple[VertexGroup, ...]
    layout: Integers
    rows: Integers
    reads: Integers
    output_rows: Integers

    @property
    def num_vertices(self) -> int:
        return len(self.layout)


def make_schedule(batch: GraphBatch, order: Callable[[GraphBatch], Integers]) -> BatchSchedule:
    """Return the schedule of a batch. `order` gives each vertex the number of its group."""
    groups = order(batch)
    starts = batch.child_starts
    depths = np.zeros(int(batch.examples[-1]) + 1, dtype=np.int64)
    np.maximum.at(depths, batch.examples, batch.heights)
    layout = np.lexsort((batch.examples, -depths[batch.examples], groups))
    rows = np.empty_like(layout)
    rows[layout] = np.arange(len(layout))
    reads = rows[batch.child_list[ranges(starts[layout], starts[layout + 1])]]
    bounds = np.concatenate(([0], np.flatnonzero(np.diff(groups[layout])) + 1, [len(layout)]))
    arities = np.array(batch.signature_arities)[batch.signatures[layout[bounds[:-1]]]]
    read_bounds = np.concatenate(([0], np.cumsum(arities * np.diff(bounds))))
    return BatchSchedule(
        groups=_groups(batch, layout, bounds, read_bounds, _first_reads(reads, read_bounds)),
        layout=layout,
        rows=rows,
        reads=reads,
        output_rows=rows[batch.outputs],
    )


def _groups(
    batch: GraphBatch, layout: Integers, bounds: Integers, read_bounds: Integers, first_reads: Integers
) -> tuple[VertexGroup, ...]:
    signatures = batch.signatures[layout[bounds[:-1]]].tolist()
    edges, read_edges = bounds.tolist(), read_bounds.tolist()
    return tuple(
        VertexGroup(
            kind=batch.signature_kinds[signature],
            num_children=batch.signature_arities[signature],
            start=edges[number],
            stop=edges[number + 1],
            read_start=read_edges[number],
            read_stop=read_edges[number + 1],
            first_read=first,
        )
        for number, (signature, first) in enumerate(zip(signatures, first_reads.tolist(), strict=True))
    )


def _first_reads(reads: Integers, bounds: Integers) -> Integers:
    """Return the first row that each group reads, or -1 if its rows are not consecutive (or it reads none)."""
    num_breaks = np.zeros(len(reads) + 1, dtype=np.int64)
    if len(reads) > 1:
        np.cumsum(np.diff(reads) != 1, out=num_breaks[1 : len(reads)])
    starts, stops = bounds[:-1], bounds[1:]
    found = np.full(len(starts), -1, dtype=np.int64)
    some = stops > starts
    first, last = starts[some], stops[some] - 1
    found[some] = np.where(num_breaks[first] == num_breaks[last], reads[first], -1)
    return found


def groups_by_kind(schedule: BatchSchedule) -> dict[str, list[int]]:
    """Return the numbers of each kind's groups, in order."""
    found: dict[str, list[int]] = {}
    for number, group in enumerate(schedule.groups):
        found.setdefault(group.kind, []).append(number)
    return found
