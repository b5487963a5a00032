"""The time of a transfer without other traffic.

In a tree, links are sometimes idle: a member sends the sum of two contributions only after it has received both. So a
transfer is simulated here move by move. A member's interface sends and receives one move after another, in the order of
rounds. A move that passes data on starts while the move that brings the data is still arriving. A ring needs no
simulation, which would take too long for thousands of members: its slowest link is busy in every round. A star and
trees need none either: in a star all members send at once, and over trees pieces follow one another, so that the
busiest link decides.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from typing import NamedTuple

import numpy as np

from autosync.plan.expansion import expand, num_chunks
from autosync.plan.flows import flow
from autosync.plan.outline import is_ring, outline
from autosync.plan.types import Algorithm, Collective
from autosync.strategy.shapes.trees import TreeShape


class MemberPlace(NamedTuple):
    """The node of a member, and the bytes a second out of that node, into it and within it."""

    node: int
    rate_out: float
    rate_in: float
    rate_within: float


@functools.lru_cache(maxsize=16384)
def seconds_alone(
    collective: Collective, algorithm: Algorithm, places: tuple[MemberPlace, ...], flow_limit: float = math.inf
) -> float:
    """Return the seconds for a buffer of one byte (for a gather: a contribution of one byte).

    A connection between two nodes carries at most `flow_limit` bytes a second.
    """
    if algorithm == "star":
        return _of_star(collective, places, flow_limit)
    if isinstance(algorithm, TreeShape):
        return _over_trees(collective, algorithm, places, flow_limit)
    seconds = _of_ring(collective, places, flow_limit) if is_ring(collective, algorithm) else None
    return _played(collective, algorithm, places, flow_limit) if seconds is None else seconds


def _of_ring(collective: Collective, places: tuple[MemberPlace, ...], flow_limit: float) -> float | None:
    """Return the time of all rounds on the slowest link.

    None if that link is within a node, or if a node has two of the links between nodes.
    """
    links = list(zip(places, (*places[1:], *places[:1]), strict=True))
    between = [(source, destination) for source, destination in links if source.node != destination.node]
    if not between or len({source.node for source, _ in between}) < len(between):
        return None
    slowest = min([min(source.rate_out, destination.rate_in, flow_limit) for source, destination in between])
    if any(source.rate_within < slowest for source, destination in links if source.node == destination.node):
        return None
    count = 1 if collective == "all_gather_v" else len(places)
    return outline(collective, "ring", len(places)).num_rounds / count / slowest


def _over_trees(collective: Collective, shape: TreeShape, places: tuple[MemberPlace, ...], flow_limit: float) -> float:
    """Return the time of the busiest interface, of the busiest link within a node, or of the busiest connection."""
    terms = flow(collective, shape, len(places))
    share = (terms.last - terms.first) / terms.num_chunks
    nodes = np.array([place.node for place in places])
    start, end = nodes[terms.source], nodes[terms.destination]
    leaves = start != end
    rates = {place.node: place for place in places}
    seconds = [0.0]
    for kind, ends, counted in (("out", start, leaves), ("in", end, leaves), ("within", start, ~leaves)):
        loads = np.bincount(ends[counted], weights=share[counted], minlength=1)
        seconds += [loads[node] / getattr(rates[node], f"rate_{kind}") for node in np.flatnonzero(loads).tolist()]
    pairs = (terms.source * len(places) + terms.destination)[leaves]
    seconds.append(np.bincount(pairs, weights=share[leaves], minlength=1).max() / flow_limit)
    return float(max(seconds))


def _of_star(collective: Collective, places: tuple[MemberPlace, ...], flow_limit: float) -> float:
    """Return the time of a star, in which all send at once.

    The root's interface is busy for each of the other members, and theirs for the members on their node.
    """
    root, *others = places
    away = Counter([one for one in others if one.node != root.node])
    within = [1.0 / one.rate_within for one in others if one.node == root.node]
    sends = collective == "broadcast"
    of_root = away.total() / (root.rate_out if sends else root.rate_in)
    of_flow = 1.0 / flow_limit if away else 0.0
    return max(
        [of_root, of_flow, *[count / (one.rate_in if sends else one.rate_out) for one, count in away.items()], *within]
    )


def _played(collective: Collective, algorithm: Algorithm, places: tuple[MemberPlace, ...], flow_limit: float) -> float:
    count = 1 if collective in ("gather_v", "all_gather_v") else num_chunks(collective, len(places))
    out_free: dict[int, float] = {}
    in_free: dict[int, float] = {}
    # By member and chunk: when the data that it has of the chunk began and ended to arrive.
    arrived: dict[tuple[int, int], tuple[float, float]] = {}
    latest = 0.0
    found: dict[tuple[int, int], tuple[float, float]] = {}
    number = 0
    for move in expand(collective, algorithm, len(places)):
        if move.round != number:
            number = move.round
            for key, (begin, end) in found.items():
                before = arrived.get(key, (0.0, 0.0))
                arrived[key] = (max(before[0], begin), max(before[1], end))
            found = {}
        source, destination = places[move.source], places[move.destination]
        is_within = source.node == destination.node
        rate = source.rate_within if is_within else min(source.rate_out, destination.rate_in, flow_limit)
        brought = [arrived.get((move.source, chunk), (0.0, 0.0)) for chunk in range(move.first, move.last)]
        start = max([begin for begin, _ in brought], default=0.0)
        if not is_within:
            start = max(start, out_free.get(source.node, 0.0), in_free.get(destination.node, 0.0))
        end = max(start + (move.last - move.first) / count / rate, max([end for _, end in brought], default=0.0))
        if not is_within:
            out_free[source.node] = in_free[destination.node] = end
        for chunk in range(move.first, move.last):
            before = found.get((move.destination, chunk), (start, 0.0))
            found[move.destination, chunk] = (max(before[0], start), max(before[1], end))
        latest = max(latest, end)
    return latest
