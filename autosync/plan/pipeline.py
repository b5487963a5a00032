"""The passes of stages in a plan: their order on each rank, and the sends between stages.

Operations are those of one step. Without a flush (`2bw` and `stashing`), ranks mix the passes of steps: a forward pass
waits for the backward pass before which as many others are under way as the rank may have, and this one may be of an
earlier step. Forward passes come in order, and so do backward passes; `rank_passes` says how a rank takes them in turn.
Under `stashing`, a forward pass also waits for the update whose parameters it takes.

The order comes from a small simulation in whole units of time. `gpipe` makes all forward passes first. Under `1f1b`, a
rank that is free makes forward and backward passes in turn, as far as what they need has come. It has at most as many
microbatches of a stage between their two passes as this stage and those behind it can work on, and `slack` more. So the
memory that activations take does not grow with the number of microbatches. Under `interleaved`, each rank has an order
of its own (see `interleaving`), and the simulation says when each pass begins.

Under `zero_bubble`, passes come as under `1f1b`, and a backward pass is split: what the stage before waits for comes
first, and the gradients of weights when the rank would wait otherwise. Until then a rank keeps the microbatch. It keeps
at most as many as all stages can work on, and `slack` more. Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR
2024, section 2.1 (ZB-H1).

Passes and sends take the units that the strategy says. Without them, a forward pass takes one unit and a backward pass
two, of which one can come later; in a stage with n ranks each takes n times as long, because each rank gets every n-th
microbatch. A backward pass that computes activations again takes a forward pass longer.

Operations are added in the order of time. So each comes after the operations that it waits for, and no plan deadlocks:
the oldest microbatch can always go on.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

from autosync.plan.builder import Builder
from autosync.plan.interleaving import Direction, OrderedPass, interleaved_orders
from autosync.plan.types import Edge, Local, Region, StagePass, Transfer
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.stages import (
    UNFLUSHED,
    ModelStage,
    PipelineSchedule,
    boundary_cuts,
    bytes_of_microbatch,
    late_turns,
    most_under_way,
)

_FIRST_STAGE_OF_QUEUES = 3
"""Templates use the queues of stages 0 to 2 of a lane."""


class TimedPass(NamedTuple):
    """A pass on a rank, and the unit of time in which it begins."""

    begin: int
    direction: Direction
    stage: int
    microbatch: int


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
    return _Timing(stages, microbatches, schedule, slack, recompute=recompute, send_units=send_units).run()


class _Timing:
    """Plays the passes of a step."""

    def __init__(
        self,
        stages: Sequence[ModelStage],
        microbatches: int,
        schedule: PipelineSchedule,
        slack: int,
        *,
        recompute: bool,
        send_units: int,
    ) -> None:
        self._splits = schedule == "zero_bubble"
        self._units = [_units(stage, recompute=recompute, splits=self._splits) for stage in stages]
        self._send_units = send_units
        self._stages = stages
        self._num_stages = len(stages)
        self._widths = [len(stage.ranks) for stage in stages]
        self._microbatches = microbatches
        self._schedule = schedule
        self._slack = slack
        # By rank the passes that are left, the next one last; without fixed orders, nothing.
        self._orders: dict[int, list[OrderedPass]] = {}
        if schedule == "interleaved":
            orders = interleaved_orders(stages, microbatches, slack)
            self._orders = {rank: order[::-1] for rank, order in orders.items()}
        # By rank its stages, the last one first; by rank and stage the next microbatch of each direction.
        self._stages_of: dict[int, list[int]] = {}
        self._next_forward: dict[tuple[int, int], int] = {}
        self._next_backward: dict[tuple[int, int], int] = {}
        self._next_weights: dict[tuple[int, int], int] = {}
        for number, stage in enumerate(stages):
            for place, rank in enumerate(stage.ranks):
                self._stages_of.setdefault(rank, []).insert(0, number)
                for following in (self._next_forward, self._next_backward, self._next_weights):
                    following[rank, number] = place
        self._free = dict.fromkeys(self._stages_of, 0)
        self._last: dict[int, Direction] = {}
        self._came: set[OrderedPass] = {("forward", 0, one) for one in range(microbatches)}

    def run(self) -> list[TimedPass]:
        found: list[TimedPass] = []
        # The times at which something ends, and what comes then.
        ends: list[tuple[int, int, str, int, int]] = [(0, 0, "", 0, 0)]
        while ends:
            now = ends[0][0]
            while ends and ends[0][0] == now:
                self._arrives(*heapq.heappop(ends)[2:])
            for rank in self._free:
                chosen = self._chosen(rank) if self._free[rank] <= now else None
                if chosen is not None:
                    self._last[rank] = chosen[0]
                    begun = TimedPass(now, *chosen)
                    found.append(begun)
                    self._free[rank] = end = now + self._units[begun.stage][begun.direction]
                    # The rank is free at the end of the pass, and the next one has what it needs after the send.
                    heapq.heappush(ends, (end, len(found), "", 0, 0))
                    heapq.heappush(ends, (end + self._sending(begun), len(found), *chosen))
        return found

    def _sending(self, one: TimedPass) -> int:
        """Return the units that it takes to send what a pass makes to the rank that needs it."""
        neighbour = one.stage + {"forward": 1, "backward": -1, "weights": 0}[one.direction]
        if not 0 <= neighbour < self._num_stages:
            return 0
        ranks = {self._stages[stage].rank_of(one.microbatch) for stage in (one.stage, neighbour)}
        return self._send_units if len(ranks) > 1 else 0

    def _arrives(self, direction: str, stage: int, microbatch: int) -> None:
        """Note that a pass is done: the next stage, or the one before, has what it needs."""
        if direction == "forward":
            is_last = stage == self._num_stages - 1
            self._came.add(("backward", stage, microbatch) if is_last else ("forward", stage + 1, microbatch))
        elif direction == "backward" and stage:
            self._came.add(("backward", stage - 1, microbatch))

    def _chosen(self, rank: int) -> OrderedPass | None:
        """Return the pass that a free rank takes, of a late stage first.

        The gradients of weights come last, because nobody waits for them.
        """
        if self._orders:
            order = self._orders[rank]
            return order.pop() if order and order[-1] in self._came else None
        ways = [self._backward, self._forward, self._weights]
        if self._schedule != "gpipe" and self._last.get(rank) != "forward":
            ways[:2] = self._forward, self._backward
        for choose in ways:
            for stage in self._stages_of[rank]:
                chosen = choose(rank, stage)
                if chosen is not None:
                    return chosen
        return None

    def _backward(self, rank: int, stage: int) -> OrderedPass | None:
        microbatch = self._next_backward[rank, stage]
        is_filled = self._next_forward[rank, stage] >= self._microbatches
        may_return = is_filled or self._schedule != "gpipe"
        if not may_return or ("backward", stage, microbatch) not in self._came:
            return None
        self._next_backward[rank, stage] += self._widths[stage]
        return "backward", stage, microbatch

    def _forward(self, rank: int, stage: int) -> OrderedPass | None:
        microbatch, width = self._next_forward[rank, stage], self._widths[stage]
        num_under_way = (microbatch - self._next_backward[rank, stage]) // width
        num_kept = (microbatch - self._next_weights[rank, stage]) // width
        is_full = num_under_way >= self._most(stage) or (self._splits and num_kept >= self._most(stage, since=0))
        if is_full or ("forward", stage, microbatch) not in self._came:
            return None
        self._next_forward[rank, stage] += width
        return "forward", stage, microbatch

    def _weights(self, rank: int, stage: int) -> OrderedPass | None:
        microbatch = self._next_weights[rank, stage]
        if not self._splits or microbatch >= self._next_backward[rank, stage]:
            return None
        self._next_weights[rank, stage] += self._widths[stage]
        return "weights", stage, microbatch

    def _most(self, stage: int, since: int | None = None) -> int:
        """Return how many microbatches a rank of a stage may have between their two passes (`most_under_way`)."""
        if self._schedule == "gpipe":
            return self._microbatches
        return most_under_way(self._stages, stage, self._slack, since=since)


def _units(stage: ModelStage, *, recompute: bool, splits: bool) -> Mapping[Direction, int]:
    """Return the units of each pass of a microbatch through a stage."""
    width = len(stage.ranks)
    forward, backward, later = stage.units or (width, 2 * width, width)
    backward += forward if recompute else 0
    found: Mapping[Direction, int] = {
        "forward": forward,
        "backward": backward - (later if splits else 0),
        "weights": later,
    }
    return {direction: max(1, units) for direction, units in found.items()}


def add_passes(
    builder: Builder, stages: Sequence[ModelStage], microbatches: int, model: ModelSpec, cluster: ClusterSpec
) -> None:
    """Add a step's passes, and the sends of activations and of their gradients between stages."""
    _Writer(builder, stages, microbatches, model, cluster).write()


class _Writer:
    def __init__(
        self,
        builder: Builder,
        stages: Sequence[ModelStage],
        microbatches: int,
        model: ModelSpec,
        cluster: ClusterSpec,
    ) -> None:
        self._builder = builder
        self._stages = stages
        self._microbatches = microbatches
        self._num_examples = model.batch_size * cluster.num_workers // microbatches
        self._sizes = [
            bytes_of_microbatch(cut, model, self._num_examples) or (0, 0) for cut in boundary_cuts(stages, model)
        ]
        # By direction, stage and microbatch, the send that the pass waits for, with its region.
        self._arriving: dict[tuple[Direction, int, int], tuple[Edge, int]] = {}
        self._done: dict[tuple[Direction, int, int], Edge] = {}
        self._last: dict[int, Edge] = {}

    def write(self) -> None:
        strategy = self._builder.strategy
        order = order_of_passes(
            self._stages,
            self._microbatches,
            strategy.schedule,
            strategy.slack,
            recompute=strategy.recompute,
            send_units=strategy.send_units,
        )
        for one in order:
            self._add(one)
        if strategy.schedule in UNFLUSHED:
            self._unchain()

    def _unchain(self) -> None:
        """Let passes wait for earlier ones of their direction, and for room, instead of for the rank's last pass.

        If stages stash parameters, forward passes also wait for the update that makes theirs.
        """
        stashes = self._builder.strategy.schedule == "stashing"
        for number, stage in enumerate(self._stages):
            most = most_under_way(self._stages, number, self._builder.strategy.slack)
            for place in range(len(stage.ranks)):
                mine = range(place, self._microbatches, len(stage.ranks))
                forward = [self._done["forward", number, microbatch] for microbatch in mine]
                backward = [self._done["backward", number, microbatch] for microbatch in mine]
                chained = {*forward, *backward}
                for position, edge in enumerate(forward):
                    steps, freeing = divmod(position - most, len(mine))
                    room = backward[freeing]._replace(lag=-steps)
                    waits = [*forward[:position][-1:], room]
                    if stashes:
                        waits.append(Edge("step_called", -1, 1 + late_turns(position, most, len(mine))))
                    self._rewire(edge, chained, waits)
                for position, edge in enumerate(backward):
                    self._rewire(edge, chained, [forward[position], *backward[:position][-1:]])

    def _rewire(self, edge: Edge, chained: Collection[Edge], waits: Sequence[Edge]) -> None:
        """Let a pass wait for these passes of its rank, instead of for others of them."""
        operations = self._builder.operations
        others = [other for other in operations[edge.target].after if other not in chained]
        operations[edge.target] = operations[edge.target]._replace(after=(*others, *waits))

    def _add(self, one: TimedPass) -> None:
        key = (one.direction, one.stage, one.microbatch)
        rank = self._stages[one.stage].rank_of(one.microbatch)
        arriving = self._arriving.get(key)
        waits = [] if arriving is None else [arriving[0]]
        if one.direction != "forward":
            before: Direction = "forward" if one.direction == "backward" else "backward"
            waits.append(self._done[before, one.stage, one.microbatch])
        if rank in self._last:
            waits.append(self._last[rank])
        neighbour = one.stage + (1 if one.direction == "forward" else -1)
        is_sent = one.direction != "weights" and 0 <= neighbour < len(self._stages)
        sent = self._region(one) if is_sent else None
        done = self._builder.add(
            Local(
                kind=one.direction,
                cost=one.direction,
                groups=((rank,),),
                sharded=False,
                inputs=() if arriving is None else (arriving[1],),
                outputs=() if sent is None else (sent,),
                num_elements=self._num_examples,
                message=-1,
                after=tuple(dict.fromkeys(waits)),
                settings=StagePass(stage=one.stage, microbatch=one.microbatch),
            )
        )
        self._done[key] = self._last[rank] = done
        if sent is not None and self._stages[neighbour].rank_of(one.microbatch) == rank:
            # What stays on the rank is not sent.
            self._arriving[one.direction, neighbour, one.microbatch] = done, sent
        elif sent is not None:
            self._send(one, rank, neighbour, sent, done)

    def _send(self, one: TimedPass, rank: int, neighbour: int, region: int, done: Edge) -> None:
        builder, boundary = self._builder, min(one.stage, neighbour)
        num_bytes = self._sizes[boundary][one.direction == "backward"]
        queue = _FIRST_STAGE_OF_QUEUES + 2 * boundary + (one.direction == "backward")
        send = Transfer(
            collective="send",
            algorithm="star",
            groups=((rank, self._stages[neighbour].rank_of(one.microbatch)),),
            regions=(region,),
            num_elements=num_bytes,
            max_elements=num_bytes,
            item_bytes=1,
            within=(),
            lane=queue * builder.num_lanes,
            priority=0,
            message=-1,
            after=(done,),
        )
        self._arriving[one.direction, neighbour, one.microbatch] = builder.add(send), region

    def _region(self, one: TimedPass) -> int:
        """Add the region that a pass sends: the microbatch's place among all microbatches that cross the boundary."""
        is_forward = one.direction == "forward"
        boundary = one.stage if is_forward else one.stage - 1
        size = self._sizes[boundary][not is_forward]
        start = one.microbatch * size
        kind: Literal["activations", "activation_grads"] = "activations" if is_forward else "activation_grads"
        return self._builder.region(Region(kind, boundary, start, start + size, "uint8"))
