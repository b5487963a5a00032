"""The orders in which groups of vertices run: by depth, by agenda, or by a rule for the next group.

A group has vertices of one signature, none of which reads another one of the group. An order gives each vertex the
number of its group, and a vertex's children are in earlier groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autosync.graphs.graph_batch import GraphBatch
from autosync.graphs.input_graph import Integers


@dataclass(slots=True, kw_only=True)
class Frontier:
    """The state of a batch before a group: how many vertices of each signature are ready, and how many are left.

    `left_heights` sums the heights of the vertices that are left.
    """

    num_ready: Integers
    num_left: Integers
    left_heights: Integers

    @property
    def ready(self) -> list[int]:
        """The signatures of which a vertex is ready."""
        return np.flatnonzero(self.num_ready).tolist()


OrderRule = Callable[[Frontier], int]
"""Chooses the signature of the next group: all ready vertices of this signature run."""


def by_depth(batch: GraphBatch) -> Integers:
    """Return groups of the vertices of one height and one signature, lowest first."""
    keys = batch.heights * len(batch.signature_kinds) + batch.signatures
    _, groups = np.unique(keys, return_inverse=True)
    return np.asarray(groups, dtype=np.int64)


def lowest_first(frontier: Frontier) -> int:
    """Choose the signature whose vertices that are left have the lowest mean height, as DyNet's agenda does."""
    return min(frontier.ready, key=lambda one: frontier.left_heights[one] / frontier.num_left[one])


def by_rule(batch: GraphBatch, rule: OrderRule) -> Integers:
    """Return the groups of an agenda: at each point, the rule chooses among the signatures that are ready."""
    num_signatures = len(batch.signature_kinds)
    signatures, starts = batch.signatures, batch.child_starts
    missing = starts[1:] - starts[:-1]
    parents, parent_starts = _parents(batch)
    ready: list[list[Integers]] = [[] for _ in range(num_signatures)]
    frontier = Frontier(
        num_ready=np.zeros(num_signatures, dtype=np.int64),
        num_left=np.bincount(signatures, minlength=num_signatures),
        left_heights=np.bincount(signatures, weights=batch.heights, minlength=num_signatures).astype(np.int64),
    )

    def add(vertices: Integers) -> None:
        kinds = signatures[vertices]
        counts = np.bincount(kinds, minlength=num_signatures)
        for signature in np.flatnonzero(counts):
            ready[signature].append(vertices[kinds == signature])
        frontier.num_ready += counts

    add(np.flatnonzero(missing == 0))
    groups = np.empty(batch.num_vertices, dtype=np.int64)
    num_groups = num_done = 0
    while num_done < batch.num_vertices:
        chosen = rule(frontier)
        group = ready[chosen][0] if len(ready[chosen]) == 1 else np.concatenate(ready[chosen])
        ready[chosen] = []
        frontier.num_ready[chosen] = 0
        frontier.num_left[chosen] -= len(group)
        frontier.left_heights[chosen] -= int(batch.heights[group].sum())
        groups[group] = num_groups
        num_groups += 1
        num_done += len(group)
        above = parents[ranges(parent_starts[group], parent_starts[group + 1])]
        np.subtract.at(missing, above, 1)
        above = above[missing[above] == 0]
        add(np.unique(above))
    return groups


def ranges(starts: Integers, ends: Integers) -> Integers:
    """Return all numbers from `starts[k]` to before `ends[k]`, one range after the other."""
    lengths = ends - starts
    offsets = np.cumsum(lengths) - lengths
    return np.repeat(starts - offsets, lengths) + np.arange(int(lengths.sum()))


def _parents(batch: GraphBatch) -> tuple[Integers, Integers]:
    """Return the parents of all vertices, one vertex after the other, and where each vertex's parents start."""
    size = batch.num_vertices
    readers = np.repeat(np.arange(size), batch.child_starts[1:] - batch.child_starts[:-1])
    starts = np.zeros(size + 1, dtype=np.int64)
    np.cumsum(np.bincount(batch.child_list, minlength=size), out=starts[1:])
    return readers[np.argsort(batch.child_list, kind="stable")], starts
