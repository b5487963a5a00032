"""Deals the examples of a batch to ranks by cost, with weights under which the mean over all examples stays right.

A rank's step takes as long as its examples together: the sum of their costs, plus a time for each level of the deepest
one, because the groups of a rank's batch run one after the other. All ranks wait for the slowest one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autosync.errors import InputError, Problem

MOST_EXCHANGES = 1000
"""The greedy deal is improved by at most so many exchanges; each makes the slowest rank faster."""

_HALVINGS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleDeal:
    """The examples of each rank, and the time of each rank's step in the units of the costs."""

    examples: tuple[tuple[int, ...], ...]
    rank_costs: tuple[float, ...]

    @property
    def num_ranks(self) -> int:
        return len(self.examples)

    @property
    def lost_share(self) -> float:
        """The share of the step that ranks wait for the slowest one, on average over the ranks."""
        return lost_share(self.rank_costs)

    @property
    def example_weight(self) -> float:
        """The factor of each example's loss in the sum of its rank, if ranks' gradients are then averaged, as DDP does.

        It is the same for all examples: with it, the average over ranks is the mean over all examples.
        """
        return self.num_ranks / sum(map(len, self.examples))

    @property
    def rank_weights(self) -> tuple[float, ...]:
        """The factors of the ranks' losses, if each rank's loss is the mean of its own examples."""
        return tuple(len(own) * self.example_weight for own in self.examples)


def lost_share(rank_costs: Sequence[float]) -> float:
    """Return the share of a step that ranks wait for the slowest one, on average over the ranks."""
    slowest = max(rank_costs)
    return 1 - math.fsum(rank_costs) / (len(rank_costs) * slowest) if slowest else 0.0


def deal_by_count(
    costs: Sequence[float], num_ranks: int, *, depths: Sequence[int] | None = None, level_cost: float = 0.0
) -> ExampleDeal:
    """Deal the examples in turn, as torch's DistributedSampler does: equal counts, whatever they cost."""
    levels = _checked(costs, num_ranks, depths, level_cost)
    return _deal([list(range(rank, len(costs), num_ranks)) for rank in range(num_ranks)], costs, levels, level_cost)


def deal(
    costs: Sequence[float], num_ranks: int, *, depths: Sequence[int] | None = None, level_cost: float = 0.0
) -> ExampleDeal:
    """Deal the examples so that the slowest rank is as fast as possible; every rank gets at least one example.

    The most expensive examples are dealt first, each to the rank that is then the fastest. Exchanges with the slowest
    rank follow. If levels cost something, a deal that keeps deep examples together is tried too. `level_cost` is the
    time of one level of the deepest example of a rank; `depths` has the number of levels of each example.
    """
    levels = _checked(costs, num_ranks, depths, level_cost)
    starts = [_dealt_by_price(costs, num_ranks, levels, level_cost)]
    if level_cost:
        starts.append(_dealt_by_depth(costs, num_ranks, levels, level_cost))
    deals = []
    for owned in starts:
        _exchange(owned, costs, levels, level_cost)
        deals.append(_deal([sorted(own) for own in owned], costs, levels, level_cost))
    return min(deals, key=lambda one: max(one.rank_costs))


def _dealt_by_price(
    costs: Sequence[float], num_ranks: int, levels: Sequence[int], level_cost: float
) -> list[list[int]]:
    """Deal the most expensive examples first, each to the rank that is then the fastest."""
    heap = [(0.0, 0, rank) for rank in range(num_ranks)]
    owned: list[list[int]] = [[] for _ in range(num_ranks)]
    deepest = [0] * num_ranks
    for example in sorted(range(len(costs)), key=lambda one: (-costs[one] - level_cost * levels[one], one)):
        cost, count, rank = heapq.heappop(heap)
        owned[rank].append(example)
        added = level_cost * max(0, levels[example] - deepest[rank])
        deepest[rank] = max(deepest[rank], levels[example])
        heapq.heappush(heap, (cost + costs[example] + added, count + 1, rank))
    return owned


def _dealt_by_depth(
    costs: Sequence[float], num_ranks: int, levels: Sequence[int], level_cost: float
) -> list[list[int]]:
    """Deal examples of similar depth to the same rank, so that few ranks run many levels."""
    order = sorted(range(len(costs)), key=lambda one: (-levels[one], -costs[one], one))
    # A little more than everything on one rank, because sums round.
    low, high = 0.0, (math.fsum(costs) + level_cost * levels[order[0]]) * (1 + 1e-9)
    prices = [level_cost * one for one in levels]
    best = _cut(order, num_ranks, costs, prices, high)
    assert best is not None, "nothing costs more than everything on one rank"
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        found = _cut(order, num_ranks, costs, prices, middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best


def _cut(
    order: Sequence[int], num_ranks: int, costs: Sequence[float], level_prices: Sequence[float], most: float
) -> list[list[int]] | None:
    """Cut the order into a run for each rank that costs at most `most`; return None if that takes more ranks."""
    owned: list[list[int]] = []
    total = math.inf
    for place, example in enumerate(order):
        # The examples that are left must not be fewer than the ranks that still have none.
        is_due = len(order) - place <= num_ranks - len(owned)
        if total + costs[example] > most or is_due:
            owned.append([])
            total = level_prices[example]
        total += costs[example]
        if len(owned) > num_ranks or total > most:
            return None
        owned[-1].append(example)
    return owned


def _exchange(owned: list[list[int]], costs: Sequence[float], levels: Sequence[int], level_cost: float) -> None:
    """Exchange an example of the slowest rank with one of another rank, or move it, as long as both then are faster."""

    def cost_of(own: Sequence[int]) -> float:
        return _rank_cost(own, costs, levels, level_cost)

    ranks = [cost_of(own) for own in owned]
    for _ in range(MOST_EXCHANGES):
        slowest = max(range(len(owned)), key=ranks.__getitem__)
        for other in sorted(range(len(owned)), key=ranks.__getitem__):
            gap = ranks[slowest] - ranks[other]
            found = _best_exchange(owned[slowest], owned[other], costs, gap) if gap > 0 else None
            if found is None:
                continue
            given, taken = found
            first = [one for one in owned[slowest] if one != given] + ([] if taken is None else [taken])
            second = [one for one in owned[other] if one != taken] + [given]
            after = cost_of(first), cost_of(second)
            if max(after) < ranks[slowest] * (1 - 1e-12):
                owned[slowest], owned[other] = first, second
                ranks[slowest], ranks[other] = after
                break
        else:
            return


def _best_exchange(
    slow: Sequence[int], fast: Sequence[int], costs: Sequence[float], gap: float
) -> tuple[int, int | None] | None:
    """Return the example to give and the one to take (or None) that come nearest to halving the gap."""
    best: tuple[float, int, int | None] | None = None
    cheapest_first = sorted(fast, key=costs.__getitem__)
    nothing: list[int | None] = [None] if len(slow) > 1 else []
    taken = [*nothing, *cheapest_first]
    prices = np.array([0.0] * len(nothing) + [costs[one] for one in cheapest_first])
    for given in slow:
        wanted = costs[given] - gap / 2
        place = int(np.searchsorted(prices, wanted))
        for near in (place - 1, place):
            if 0 <= near < len(prices) and 0 < costs[given] - prices[near] < gap:
                off = abs(float(prices[near]) - wanted)
                if best is None or off < best[0]:
                    best = (off, given, taken[near])
    return None if best is None else best[1:]


def _deal(
    owned: Sequence[Sequence[int]], costs: Sequence[float], levels: Sequence[int], level_cost: float
) -> ExampleDeal:
    return ExampleDeal(
        examples=tuple(tuple(own) for own in owned),
        rank_costs=tuple(_rank_cost(own, costs, levels, level_cost) for own in owned),
    )


def _rank_cost(own: Sequence[int], costs: Sequence[float], levels: Sequence[int], level_cost: float) -> float:
    return math.fsum(costs[one] for one in own) + level_cost * max((levels[one] for one in own), default=0)


def _checked(costs: Sequence[float], num_ranks: int, depths: Sequence[int] | None, level_cost: float) -> Sequence[int]:
    """Return the number of levels of each example; raise InputError if something cannot be dealt."""
    problems = []
    if num_ranks < 1:
        problems.append(Problem(what=f"{num_ranks} ranks", rule="at least one rank", path=("num_ranks",)))
    if len(costs) < num_ranks:
        what = f"{len(costs)} examples for {num_ranks} ranks"
        rule = "every rank has at least one example"
        problems.append(Problem(what=what, rule=rule, path=("costs",), hint="use a larger batch, or fewer ranks"))
    for example, cost in enumerate(costs):
        if not math.isfinite(cost) or cost <= 0:
            problems.append(Problem(what=f"cost {cost}", rule="a positive number", path=("costs", example)))
    if depths is not None and len(depths) != len(costs):
        what = f"{len(depths)} depths for {len(costs)} examples"
        problems.append(Problem(what=what, rule="one for each example", path=("depths",)))
    if not math.isfinite(level_cost) or level_cost < 0:
        problems.append(Problem(what=f"{level_cost}", rule="not below 0, and finite", path=("level_cost",)))
    if level_cost and depths is None:
        problems.append(Problem(what="depths are missing", rule="a cost of levels needs depths", path=("depths",)))
    if problems:
        raise InputError(problems[:50])
    return depths if depths is not None else [0] * len(costs)
