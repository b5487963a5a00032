"""Searches for links that nodes share: chooses the next loads from the measured ones, and decides. Pure functions.

1. Loads of all nodes (`loads.plan_screen`) show whether any nodes get less together than alone.
2. Loads that show it are measured again, and the faster measurement counts.
3. The cuts that explain them (`cuts.find_cuts`) name groups of nodes. Each group is looked at closely, in the direction
   of its cut: its nodes one after another, then together, with the same partners, in several rounds.

A group shares a link if its nodes get clearly less together than in sum one after another, in nearly all rounds, and
the same each time: busy processors make transfers slow too, but not equally slow. Its partners may share another link:
they are chosen so that this matters least, and what it takes away is left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from autosync.specs.calibration import Estimate
from autosync.trials.probe.analysis import estimate
from autosync.trials.probe.cuts import Cut, Cuts, best_rows, find_cuts, measured_stars
from autosync.trials.probe.loads import AloneRates, plan_screen, spread, stars_of, total_rate
from autosync.trials.probe.request import HostLoad, LoadSamples, Ways

FEWEST_NODES = 4
"""With three nodes, a link that two share is the link of the third."""
MOST_NODES = 64
NUM_ROUNDS = 6
FEWEST_AGREEING = 4
CLEARLY_LESS = 0.9
STEADY = 0.1
"""What a group gets together differs by at most this share between the fastest rounds: else it is no link's rate."""
BUSY_LOAD = 0.85
"""A load in which more of a node's processor time was in use may be limited by the processor."""
MOST_CUTS = 8

_CARRIED = 1.05
_NUM_TRIES = 50
_MOST_IN_DOUBT = 0.2
_LEAST_EXPLAINED = 0.7
_FEWEST_DEFICIENT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkRate:
    """One direction of a shared link: bytes per second of its nodes together, and in sum one after another.

    `num_agreeing` of `num_rounds` rounds have clearly less together.
    """

    together: Estimate
    in_sum: Estimate
    num_agreeing: int
    num_rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedUplink:
    """Nodes, by position, that share a link with all others; a direction that they do not share is None.

    If the others are as many, nothing can tell whether these nodes or the others share the link.
    """

    group: tuple[int, ...]
    out: UplinkRate | None
    into: UplinkRate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RackSearch:
    """The result of a search: the shared uplinks, the number of loads measured, and the reason if it could not tell."""

    uplinks: tuple[SharedUplink, ...]
    num_loads: int
    doubt: str | None = None


def next_loads(measured: Sequence[LoadSamples], alone: AloneRates, most_loads: int) -> tuple[HostLoad, ...]:
    """Return the loads to measure after these; none if the search is at its end."""
    if not FEWEST_NODES <= len(alone.out) <= MOST_NODES or min(*alone.out, *alone.into) <= 0:
        return ()
    purposes = {row.load.purpose for row in measured}
    if not purposes:
        return plan_screen(alone, most_loads)
    if purposes == {"screen"}:
        slow = sorted({one.row for one in measured_stars(measured, alone) if one.is_deficient})
        return tuple(HostLoad(purpose="again", ways=measured[row].load.ways) for row in slow)
    if "together" in purposes:
        return ()
    rows = best_rows(measured)
    if _are_too_many_in_doubt(rows, alone):
        return ()
    cuts = find_cuts(rows, alone).cuts[:MOST_CUTS]
    return tuple(chain.from_iterable(_close_look(cut, cuts, alone) for cut in cuts))


def decide(measured: Sequence[LoadSamples], alone: AloneRates) -> RackSearch:
    """Return the result of a search after its last loads."""
    screened = best_rows([row for row in measured if row.load.purpose in ("screen", "again")])
    if not any(one.is_deficient for one in measured_stars(screened, alone)):
        return RackSearch(uplinks=(), num_loads=len(measured))
    if _are_too_many_in_doubt(screened, alone):
        busiest = max(row.cpu_share for row in screened)
        doubt = f"nodes get less together than alone, but processors were {busiest:.0%} busy, which may be the reason"
        return RackSearch(uplinks=(), num_loads=len(measured), doubt=doubt)
    found = find_cuts(screened, alone)
    carried = max(row.rate for row in measured)
    rates: dict[tuple[int, ...], dict[bool, UplinkRate]] = {}
    for group, is_out in dict.fromkeys((r.load.group, r.load.is_out) for r in measured if r.load.purpose == "together"):
        own = [row for row in measured if (row.load.group, row.load.is_out) == (group, is_out)]
        rate = _judged(own, _others(group, found.cuts, len(alone.out)), carried)
        if rate is not None:
            rates.setdefault(group, {})[is_out] = rate
    uplinks = _apart(
        [SharedUplink(group=group, out=both.get(True), into=both.get(False)) for group, both in rates.items()],
        len(alone.out),
    )
    return RackSearch(
        uplinks=tuple(sorted(uplinks, key=lambda one: one.group)),
        num_loads=len(measured),
        doubt=_doubt(found, uplinks, measured, len(alone.out)),
    )


def _apart(uplinks: Sequence[SharedUplink], num_nodes: int) -> list[SharedUplink]:
    """Return the uplinks of groups that have no node in common: racks have no racks inside.

    Half of the nodes may as well be the other half, which is taken if it has no node in common with other groups.
    """
    found: list[SharedUplink] = []
    for uplink in sorted(uplinks, key=lambda one: 2 * len(one.group) == num_nodes):
        sides = [uplink]
        if 2 * len(uplink.group) == num_nodes:
            others = tuple(node for node in range(num_nodes) if node not in uplink.group)
            sides.append(SharedUplink(group=others, out=uplink.into, into=uplink.out))
        taken = {node for one in found for node in one.group}
        found += [side for side in sides if taken.isdisjoint(side.group)][:1]
    return found


def _doubt(found: Cuts, uplinks: Sequence[SharedUplink], measured: Sequence[LoadSamples], num_nodes: int) -> str | None:
    """Return why the search may have missed something, or None if the uplinks explain what was measured."""
    senders = {one.group for one in uplinks if one.out is not None}
    receivers = {one.group for one in uplinks if one.into is not None}
    explained = sum(
        cut.num_explained
        for cut in found.cuts
        if cut.senders in senders or tuple(node for node in range(num_nodes) if node not in cut.senders) in receivers
    )
    if found.num_deficient < _FEWEST_DEFICIENT or explained >= _LEAST_EXPLAINED * found.num_deficient:
        return None
    if any(row.cpu_share > BUSY_LOAD for row in measured if row.load.purpose == "together"):
        return "nodes get less together than alone, but the processors were too busy to tell why"
    return (
        "nodes get less together than alone, but no group explains it: other traffic, or a limit of the whole network"
    )


def _are_too_many_in_doubt(rows: Sequence[LoadSamples], alone: AloneRates) -> bool:
    """Return whether many loads may be slow because processors were busy.

    Another load that carried as much clears the processors.
    """
    carried = max(row.rate for row in rows)
    slow = {one.row for one in measured_stars(rows, alone) if one.is_deficient}
    in_doubt = [
        row
        for row in slow
        if rows[row].cpu_share > BUSY_LOAD and total_rate(rows[row].load.ways, alone) > _CARRIED * carried
    ]
    return len(in_doubt) > _MOST_IN_DOUBT * len(rows)


def _named(cut: Cut, num_nodes: int) -> tuple[tuple[int, ...], bool]:
    """Return the smaller side of a cut, and whether it sends; of equal sides, the one with the first node."""
    others = tuple(node for node in range(num_nodes) if node not in cut.senders)
    group = min(cut.senders, others, key=lambda side: (len(side), side))
    return group, group == cut.senders


def _close_look(cut: Cut, cuts: Sequence[Cut], alone: AloneRates) -> Iterator[HostLoad]:
    """Yield the loads of a cut: in each round each star alone, then all together."""
    group, is_out = _named(cut, len(alone.out))
    ways = _partners(cut, cuts, alone)
    for number in range(NUM_ROUNDS):
        for star in stars_of(ways, alone):
            own = tuple(ways[way] for way in star.ways)
            yield HostLoad(purpose="alone", ways=own, group=group, is_out=is_out, round=number)
        yield HostLoad(purpose="together", ways=ways, group=group, is_out=is_out, round=number)


def _partners(cut: Cut, cuts: Sequence[Cut], alone: AloneRates) -> Ways:
    """Return who sends to whom over a cut, so that other cuts take away as little as possible."""
    num_nodes = len(alone.out)
    others = _others(_named(cut, num_nodes)[0], cuts, num_nodes)
    receivers = [node for node in range(num_nodes) if node not in cut.senders]
    order = random.Random(0)

    def remaining(ways: Ways) -> float:
        stars = [(tuple(ways[way] for way in star.ways), star.rate) for star in stars_of(ways, alone)]
        return sum(rate for _, rate in stars) - _taken(stars, others)

    tries = [
        spread(order.sample(cut.senders, len(cut.senders)), order.sample(receivers, len(receivers)), alone)
        for _ in range(_NUM_TRIES)
    ]
    return max(tries, key=remaining)


def _others(group: tuple[int, ...], cuts: Sequence[Cut], num_nodes: int) -> list[Cut]:
    """Return the cuts of other racks, which have none of the group's nodes; half of the nodes may be the other half."""
    named = [(cut, set(_named(cut, num_nodes)[0])) for cut in cuts]
    is_half = 2 * len(group) == num_nodes
    return [cut for cut, other in named if other.isdisjoint(group) or (is_half and other < set(group))]


def _taken(stars: Sequence[tuple[Ways, float]], cuts: Sequence[Cut]) -> float:
    """Return what the cuts take away from stars of these rates together."""
    asked = [
        sum(rate for ways, rate in stars if any(s in cut.senders and d not in cut.senders for s, d in ways))
        for cut in cuts
    ]
    return sum(max(0.0, rate - cut.rate) for rate, cut in zip(asked, cuts, strict=True))


def _judged(rows: Sequence[LoadSamples], others: Sequence[Cut], carried: float) -> UplinkRate | None:
    """Return the rate of a link from its close look, or None if it is not shared or cannot be told.

    `others` are the cuts of other racks; `carried` is the most that any load carried.
    """
    together = {row.load.round: row for row in rows if row.load.purpose == "together"}
    sums: dict[int, float] = {}
    for number in together:
        stars = [(r.load.ways, r.rate) for r in rows if r.load.purpose == "alone" and r.load.round == number]
        sums[number] = sum(rate for _, rate in stars) - _taken(stars, others)
    busy = [n for n, row in together.items() if row.cpu_share > BUSY_LOAD and sums[n] > _CARRIED * carried]
    agreeing = [number for number, row in together.items() if row.rate < CLEARLY_LESS * sums[number]]
    fastest = sorted((row.rate for row in together.values()), reverse=True)[:FEWEST_AGREEING]
    is_steady = fastest[-1] >= (1 - STEADY) * fastest[0]
    if not is_steady or len(together) - len(busy) < FEWEST_AGREEING or len(agreeing) < FEWEST_AGREEING:
        return None
    return UplinkRate(
        together=estimate([row.rate for row in together.values()]),
        in_sum=estimate(list(sums.values())),
        num_agreeing=len(agreeing),
        num_rounds=len(together),
    )
