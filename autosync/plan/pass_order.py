"""The order of a step's passes on each rank.

It comes from a small simulation in whole units of time (see `pass_units`). `gpipe` makes all forward passes first.
Under `1f1b`, a rank that is free makes forward and backward passes in turn, as far as what they need has come. It has
at most as many microbatches of a stage between their two passes as this stage and those behind it can work on, and
`slack` more. So the memory that activations take does not grow with the number of microbatches. Under `interleaved`,
each rank has an order of its own (see `interleaving`), and the simulation says when each pass begins.

Under `zero_bubble`, passes come as under `1f1b`, and a backward pass is split: what the stage before waits for comes
first, and the gradients of weights when the rank would wait otherwise. Until then a rank keeps the microbatch. It keeps
at most as many as all stages can work on, and `slack` more. Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR
2024, section 2.1 (ZB-H1).

A rank may have several stages, such as the first and the last one. If it always takes its last stage's passes first,
the first stage gets no room for further microbatches while the last one has work. Then the other ranks run empty, and
later get many microbatches at once. So the step is played a second time. There, such a rank takes the pass with which
the chains of passes that wait for it and for the rank's other passes end first; forward passes that wait for room are
part of these chains. This is list scheduling by the longest path, which is nearly always better, but not always. The
order that ends first is taken, and on a tie the one by late stages. Limits on microbatches under way are those of the
schedule in both.

Passes are listed in the order of time. So each comes after the passes that it waits for, and no plan deadlocks: the
oldest microbatch can always go on.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from autosync.plan.interleaving import Direction, OrderedPass, interleaved_orders
from autosync.plan.pass_units import PassUnits
from autosync.strategy.stages import ModelStage, PipelineSchedule


class TimedPass(NamedTuple):
    """A pass on a rank, and the unit of time in which it begins."""

    begin: int
    direction: Direction
    stage: int
    microbatch: int


class PlayedOrder(NamedTuple):
    """The passes of a step by the time at which they begin, and the unit of time at which the last one ends."""

    end: int
    passes: list[TimedPass]


def order_of_passes(
    stages: Sequence[ModelStage],
    microbatches: int,
    schedule: PipelineSchedule,
    slack: int = 0,
    *,
    recompute: bool = False,
    send_units: int = 0,
) -> list[TimedPass]:
    """Return all passes of a step by the time at which they begin; on each rank they come in this order."""
    units = PassUnits(stages, microbatches, schedule, slack, recompute=recompute, send_units=send_units)
    by_late_stages = played(units)
    ranks = [rank for stage in stages for rank in stage.ranks]
    if schedule == "interleaved" or len(set(ranks)) == len(ranks):
        return by_late_stages.passes
    by_paths = played(units, units.longest_paths())
    return min(by_late_stages, by_paths, key=lambda one: one.end).passes


def played(units: PassUnits, paths: Mapping[OrderedPass, int] | None = None) -> PlayedOrder:
    """Play a step. With `paths`, ranks that have several stages choose passes by them, else by late stages."""
    return _Timing(units, paths or {}).run()


class _Timing:
    """Plays the passes of a step."""

    def __init__(self, units: PassUnits, paths: Mapping[OrderedPass, int]) -> None:
        self._units = units
        self._paths = paths
        self._schedule = units.schedule
        self._widths = [len(stage.ranks) for stage in units.stages]
        # By rank the passes that are left, the next one last; without fixed orders, nothing.
        self._orders: dict[int, list[OrderedPass]] = {}
        if self._schedule == "interleaved":
            orders = interleaved_orders(units.stages, units.microbatches, units.slack)
            self._orders = {rank: order[::-1] for rank, order in orders.items()}
        # By rank its stages, the last one first; by direction, rank and stage the next microbatch.
        self._stages_of: dict[int, list[int]] = {}
        self._next: dict[tuple[Direction, int, int], int] = {}
        directions: tuple[Direction, ...] = ("forward", "backward", "weights")
        for number, stage in enumerate(units.stages):
            for place, rank in enumerate(stage.ranks):
                self._stages_of.setdefault(rank, []).insert(0, number)
                self._next.update({(direction, rank, number): place for direction in directions})
        self._free = dict.fromkeys(self._stages_of, 0)
        self._last: dict[int, Direction] = {}
        self._came: set[OrderedPass | None] = {("forward", 0, one) for one in range(units.microbatches)}
        self._most_under_way = [units.most_under_way(stage) for stage in range(len(units.stages))]
        self._most_kept = [units.most_under_way(stage, since=0) for stage in range(len(units.stages))]

    def run(self) -> PlayedOrder:
        found: list[TimedPass] = []
        numbers, places = itertools.count(), {rank: place for place, rank in enumerate(self._free)}
        # The times at which something ends, a rank that may then go on, and the pass that has what it needs, if any.
        ends: list[tuple[int, int, int, OrderedPass | None]] = [(0, next(numbers), rank, None) for rank in self._free]
        while ends:
            now, woken = ends[0][0], set[int]()
            while ends and ends[0][0] == now:
                _, _, rank, came = heapq.heappop(ends)
                self._came.add(came)
                woken.add(rank)
            # For the other ranks nothing has changed since they last had to wait.
            for rank in sorted(woken, key=places.__getitem__):
                chosen = self._chosen(rank) if self._free[rank] <= now else None
                if chosen is not None:
                    self._last[rank] = chosen[0]
                    found.append(TimedPass(now, *chosen))
                    self._free[rank] = end = now + self._units.of(chosen)
                    # The rank is free at the end of the pass, and the next one has what it needs after the send.
                    heapq.heappush(ends, (end, next(numbers), rank, None))
                    needing = self._units.next_of(chosen)
                    if needing is not None:
                        other = self._units.stages[needing[1]].rank_of(needing[2])
                        heapq.heappush(ends, (end + self._units.sending(chosen), next(numbers), other, needing))
        return PlayedOrder(max(self._free.values()), found)

    def _chosen(self, rank: int) -> OrderedPass | None:
        """Return the pass that a free rank takes, which then counts as taken; None if it must wait."""
        if self._orders:
            order = self._orders[rank]
            return order.pop() if order and order[-1] in self._came else None
        chooses_by_paths = self._paths and len(self._stages_of[rank]) > 1
        chosen = self._by_paths(rank) if chooses_by_paths else self._in_turn(rank)
        if chosen is not None:
            direction, stage, _ = chosen
            self._next[direction, rank, stage] += self._widths[stage]
        return chosen

    def _in_turn(self, rank: int) -> OrderedPass | None:
        """Return the next pass by turns of forward and backward passes, of a late stage first.

        The gradients of weights come last, because no pass waits for them.
        """
        ways = [self._backward, self._forward, self._weights]
        if self._schedule != "gpipe" and self._last.get(rank) != "forward":
            ways[:2] = self._forward, self._backward
        found = (choose(rank, stage) for choose in ways for stage in self._stages_of[rank])
        return next((one for one in found if one is not None), None)

    def _by_paths(self, rank: int) -> OrderedPass | None:
        """Return the next pass by the longest paths; the gradients of weights come last here too."""
        found = [
            one
            for choose in (self._backward, self._forward)
            for stage in self._stages_of[rank]
            if (one := choose(rank, stage)) is not None
        ]
        if not found:
            later = (self._weights(rank, stage) for stage in self._stages_of[rank])
            return next((one for one in later if one is not None), None)

        def end_with(one: OrderedPass) -> int:
            """Return when all these paths have ended, if this pass comes first and no other rank delays them."""
            others = max((self._paths[other] for other in found if other != one), default=0)
            return max(self._paths[one], self._units.of(one) + others)

        # On a tie the shorter pass, then the older microbatch.
        return min(found, key=lambda one: (end_with(one), self._units.of(one), one[2]))

    def _backward(self, rank: int, stage: int) -> OrderedPass | None:
        microbatch = self._next["backward", rank, stage]
        is_filled = self._next["forward", rank, stage] >= self._units.microbatches
        may_return = is_filled or self._schedule != "gpipe"
        found: OrderedPass = ("backward", stage, microbatch)
        return found if may_return and found in self._came else None

    def _forward(self, rank: int, stage: int) -> OrderedPass | None:
        microbatch, width = self._next["forward", rank, stage], self._widths[stage]
        num_under_way = (microbatch - self._next["backward", rank, stage]) // width
        num_kept = (microbatch - self._next["weights", rank, stage]) // width
        is_full = num_under_way >= self._most_under_way[stage] or (
            self._units.splits and num_kept >= self._most_kept[stage]
        )
        found: OrderedPass = ("forward", stage, microbatch)
        return found if not is_full and found in self._came else None

    def _weights(self, rank: int, stage: int) -> OrderedPass | None:
        microbatch = self._next["weights", rank, stage]
        is_due = self._units.splits and microbatch < self._next["backward", rank, stage]
        return ("weights", stage, microbatch) if is_due else None
