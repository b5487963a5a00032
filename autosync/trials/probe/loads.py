"""Plans loads for the search for shared links: sets of nodes that all send to other nodes at the same time.

Nodes behind one uplink get less together than alone only if enough of them send at once. So the nodes are halved in
many ways, and one half sends to the other. A load that passes at full rate clears every group within its halves at
once. Groups that no half tests, because its nodes are faster than their partners, get loads of their own. Pure
functions of the rates that each node has alone.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from autosync.trials.probe.request import HostLoad, Ways

MOST_NODES_IN_ALL_HALVES = 8
"""With more nodes, some halves are chosen: alternating runs of neighbours in the file, then halves drawn at random."""
NUM_CHOSEN_HALVES = 40
TESTED = 0.85
"""A group is tested if its nodes were to send at least this share of what they and the others could carry."""

_MOST_NODES_PAIRED_TWICE = 6
_NARROW = 0.95
_ALIKE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class AloneRates:
    """The bytes per second that each node sends and receives while no other is measured, by position."""

    out: tuple[float, ...]
    into: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Star:
    """A sender with its receivers, or a receiver with its senders, which no other star of the load uses.

    `ways` are positions in the load; `rate` is the bytes per second that the links of the nodes allow.
    """

    ways: tuple[int, ...]
    rate: float


def stars_of(ways: Ways, alone: AloneRates) -> tuple[Star, ...]:
    """Return the stars of a load, in the order of their first way."""
    num_by_source: dict[int, int] = {}
    for source, _ in ways:
        num_by_source[source] = num_by_source.get(source, 0) + 1
    groups: dict[tuple[str, int], list[int]] = {}
    for position, (source, destination) in enumerate(ways):
        center = ("out", source) if num_by_source[source] > 1 else ("in", destination)
        groups.setdefault(center, []).append(position)
    return tuple(Star(ways=tuple(own), rate=_star_rate([ways[way] for way in own], alone)) for own in groups.values())


def _star_rate(ways: Sequence[tuple[int, int]], alone: AloneRates) -> float:
    sources, destinations = {source for source, _ in ways}, {destination for _, destination in ways}
    return min(sum(alone.out[node] for node in sources), sum(alone.into[node] for node in destinations))


def total_rate(ways: Ways, alone: AloneRates) -> float:
    """Return the bytes per second of a load if its nodes get what they get alone."""
    return sum(star.rate for star in stars_of(ways, alone))


def spread(sources: Sequence[int], destinations: Sequence[int], alone: AloneRates) -> Ways:
    """Return who sends to whom, so that the links of the nodes carry as much as possible and no two stars meet.

    The fastest sender has the fastest receiver; nodes of about the same rate stay in the order given. Nodes that are
    left over join the star whose centre needs them most, or none.
    """
    senders, receivers = _fastest_first(sources, alone.out), _fastest_first(destinations, alone.into)
    pairs = list(zip(senders, receivers, strict=False))
    rest = receivers[len(pairs) :] or senders[len(pairs) :]
    is_out = len(receivers) > len(senders)
    centers = {(pair[0] if is_out else pair[1]): [pair[1] if is_out else pair[0]] for pair in pairs}
    own, others = (alone.out, alone.into) if is_out else (alone.into, alone.out)

    def lacks(center: int) -> float:
        return own[center] - sum(others[leaf] for leaf in centers[center])

    for node in rest:
        center = max(centers, key=lambda one: (lacks(one), -len(centers[one])))
        if lacks(center) <= (1 - _NARROW) * own[center]:
            break
        centers[center].append(node)
    ways = [(center, leaf) if is_out else (leaf, center) for center, leaves in centers.items() for leaf in leaves]
    return tuple(ways)


def _fastest_first(nodes: Sequence[int], rates: Sequence[float]) -> list[int]:
    """Return the nodes by rate, where a rate within `_ALIKE` of a faster node's counts as equal."""
    classes: dict[int, int] = {}
    first, number = 0.0, -1
    for node in sorted(nodes, key=lambda node: -rates[node]):
        if rates[node] < _ALIKE * first or not classes:
            first, number = rates[node], number + 1
        classes[node] = number
    return sorted(nodes, key=lambda node: classes[node])


def plan_screen(alone: AloneRates, most_loads: int) -> tuple[HostLoad, ...]:
    """Return the loads that show whether any group of nodes shares a link; at most `most_loads`."""
    num_nodes = len(alone.out)
    planned: dict[Ways, None] = {}
    for number, senders in enumerate(_halves(num_nodes)):
        if len(planned) == most_loads:
            break
        # Nodes of equal rates have other partners each time.
        order = random.Random(number)
        others = [node for node in range(num_nodes) if node not in senders]
        shuffled = order.sample(senders, len(senders)), order.sample(others, len(others))
        planned[spread(*shuffled, alone)] = None
    if num_nodes <= MOST_NODES_IN_ALL_HALVES:
        _add_untested(planned, alone, most_loads)
    return tuple(HostLoad(purpose="screen", ways=ways) for ways in planned)


def _halves(num_nodes: int) -> Iterator[tuple[int, ...]]:
    """Yield halves of the nodes, each followed by the other half."""
    nodes = range(num_nodes)
    if num_nodes <= MOST_NODES_IN_ALL_HALVES:
        # Few nodes have few halves, so each pairs its nodes in two ways.
        for _ in range(2 if num_nodes <= _MOST_NODES_PAIRED_TWICE else 1):
            for size in {num_nodes // 2, num_nodes - num_nodes // 2}:
                yield from itertools.combinations(nodes, size)
        return
    order = random.Random(0)
    runs = [2**power for power in reversed(range((num_nodes - 1).bit_length()))]
    chosen = [tuple(node for node in nodes if node // length % 2 == 0) for length in runs]
    chosen += [tuple(sorted(order.sample(nodes, num_nodes // 2))) for _ in range(NUM_CHOSEN_HALVES - len(runs))]
    for half in chosen:
        yield half
        yield tuple(node for node in nodes if node not in half)


def _add_untested(planned: dict[Ways, None], alone: AloneRates, most_loads: int) -> None:
    """Add loads for the groups of which more could be asked than the halves ask, the least tested group first."""
    nodes = range(len(alone.out))
    groups = [
        (frozenset(group), is_out)
        for size in range(2, len(nodes) // 2 + 1)
        for group in itertools.combinations(nodes, size)
        for is_out in (True, False)
    ]
    sides = [_sides(ways, alone) for ways in planned]
    asked = [max((_asked(side, *group) for side in sides), default=0.0) for group in groups]
    possible = [_possible(alone, *group) for group in groups]
    while len(planned) < most_loads:
        worst = min(range(len(groups)), key=lambda index: asked[index] / possible[index])
        if asked[worst] >= TESTED * possible[worst]:
            return
        group, is_out = groups[worst]
        inside, outside = sorted(group), [node for node in nodes if node not in group]
        ways = spread(inside, outside, alone) if is_out else spread(outside, inside, alone)
        planned[ways] = None
        side = _sides(ways, alone)
        asked = [max(before, _asked(side, *one)) for before, one in zip(asked, groups, strict=True)]
        # No load asks more of the group than this one.
        possible[worst] = min(possible[worst], asked[worst] / TESTED)


def _sides(ways: Ways, alone: AloneRates) -> list[tuple[frozenset[int], frozenset[int], float]]:
    """Return the senders, receivers and rate of each star of a load."""
    return [
        (frozenset(ways[way][0] for way in star.ways), frozenset(ways[way][1] for way in star.ways), star.rate)
        for star in stars_of(ways, alone)
    ]


def _asked(
    stars: Iterable[tuple[frozenset[int], frozenset[int], float]],
    group: frozenset[int],
    is_out: bool,  # noqa: FBT001 - one of a pair
) -> float:
    """Return the rate that a load asks of a group's way out, or in: that of the stars that lie across it."""
    return sum(
        rate
        for senders, receivers, rate in stars
        if (
            senders <= group and receivers.isdisjoint(group)
            if is_out
            else receivers <= group and senders.isdisjoint(group)
        )
    )


def _possible(alone: AloneRates, group: frozenset[int], is_out: bool) -> float:  # noqa: FBT001 - one of a pair
    """Return the rate that the links of the group and of the others allow."""
    out, into = (alone.out, alone.into) if is_out else (alone.into, alone.out)
    return min(
        sum(rate for node, rate in enumerate(out) if node in group),
        sum(rate for node, rate in enumerate(into) if node not in group),
    )
