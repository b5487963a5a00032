"""Plays a plan with stages: passes on ranks, sends on links, then sums within stages and updates.

With a flush, one step from rest is played. Without one, several steps are played, and a step takes as long as from the
end of one to the end of the next, when the pipeline is full. Sums and norms are not played there, because the passes of
the next step hide them. But no step is shorter than all bytes of the busiest link take, those of the sums included.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from autosync.plan.outline import outline
from autosync.plan.rank_passes import passes_of
from autosync.plan.traffic import Traffic, plan_traffic, transfer_traffic
from autosync.plan.types import Edge, Local, Operation, Plan, StagePass, Transfer
from autosync.simulators.stages.fluid_links import FluidLinks
from autosync.specs.cluster import ClusterSpec
from autosync.specs.costs import Costs
from autosync.specs.model import ModelSpec
from autosync.specs.uplinks import crossed
from autosync.strategy.stage_compute import pass_seconds, update_seconds

_STEPS, _MEASURED = 8, 4
"""Without a flush, so many steps are played, and the last of them are measured."""


class PlayedPass(NamedTuple):
    """A pass as it was played."""

    rank: int
    kind: str
    place: StagePass
    begin: float
    end: float


class PlayedStep(NamedTuple):
    """A played step: its passes, the end of each rank's passes, and the seconds of the whole step.

    Without a flush, passes and ends are those of all steps that were played.
    """

    passes: list[PlayedPass]
    ends: dict[int, float]
    seconds: float


def play_stages(plan: Plan, model: ModelSpec, cluster: ClusterSpec, costs: Costs) -> PlayedStep:
    """Play one step from rest. A step ends when all ranks have ended, because they tell each other the loss."""
    return _Player(plan, model, cluster, costs).run()


class _Turn(NamedTuple):
    """A pass of a rank: its key, the step in which the rank makes it, and what the rank does after it, in seconds."""

    key: int
    step: int
    after: float


class _Player:
    """Plays passes. The key of an operation of batch b is b times the number of operations, plus its position."""

    def __init__(self, plan: Plan, model: ModelSpec, cluster: ClusterSpec, costs: Costs) -> None:
        self._plan = plan
        self._model = model
        self._cluster = cluster
        self._costs = costs
        self._seconds = pass_seconds(
            plan.stages, model, _num_examples(plan), recompute=plan.recompute, splits_backward=plan.splits_backward
        )
        rates = [rate * costs.link_share for node in cluster.nodes for rate in (node.bandwidth_out, node.bandwidth_in)]
        self._uplinks = len(rates)
        for rack in cluster.racks:
            rates += [rack.uplink_out * costs.link_share, rack.uplink_in * costs.link_share]
        self._links = FluidLinks(rates)
        self._updates = self._update_seconds()
        self._num_operations = len(plan.operations)
        self._queues = {rank: list(self._turns(rank)) for rank in range(plan.num_workers)}
        self._sends = {
            one.after[0].target: index
            for index, one in enumerate(plan.operations)
            if isinstance(one, Transfer) and one.collective == "send"
        }
        self._done: set[int] = set()
        self._next = dict.fromkeys(self._queues, 0)
        self._busy: set[int] = set()
        self._connections: dict[tuple[int, ...], list[int]] = {}
        self._step_ends: dict[int, float] = {}

    def _turns(self, rank: int) -> Iterator[_Turn]:
        """Yield the passes of a rank, of all steps that are played."""
        passes = passes_of(self._plan, rank)
        for step in range(1 if self._plan.flushes else _STEPS):
            for number, one in enumerate(passes):
                is_last = number == len(passes) - 1 and not self._plan.flushes
                if step >= one.late:
                    key = (step - one.late) * self._num_operations + one.operation
                    yield _Turn(key, step, self._updates[rank] if is_last else 0.0)

    def _update_seconds(self) -> list[float]:
        seconds, nodes = update_seconds(self._plan.stages, self._model, self._plan.num_workers), self._cluster.nodes
        return [one / nodes[self._cluster.ranks[rank].node].compute for rank, one in enumerate(seconds)]

    def _operation(self, key: int) -> Operation:
        return self._plan.operations[key % self._num_operations]

    def run(self) -> PlayedStep:
        passes: list[PlayedPass] = []
        ends: dict[int, float] = {}
        events: list[tuple[float, int, int]] = []
        now = 0.0
        self._start(now, events, passes)
        while True:
            of_link = self._links.next_end()
            of_pass = events[0][0] if events else math.inf
            if of_link is not None and of_link[0] <= of_pass:
                now, key = of_link
                self._arrive(key, now)
                heapq.heappush(events, (now + self._costs.round_seconds, 1, key))
            elif events:
                now, is_message, key = heapq.heappop(events)
                self._done.add(key)
                if not is_message:
                    rank = self._operation(key).groups[0][0]
                    self._busy.discard(rank)
                    ends[rank] = now
                    self._send(key, now, events)
            else:
                break
            self._start(now, events, passes)
        return PlayedStep(passes, ends, self._finish(ends) if self._plan.flushes else self._period())

    def _start(self, now: float, events: list[tuple[float, int, int]], passes: list[PlayedPass]) -> None:
        """Begin the next pass of each rank that is free and has what the pass needs."""
        for rank, queue in self._queues.items():
            place = self._next[rank]
            if rank in self._busy or place == len(queue):
                continue
            turn = queue[place]
            operation = self._operation(turn.key)
            assert isinstance(operation, Local), "passes are local"
            if all(self._is_met(edge, turn.key) for edge in operation.after):
                settings = operation.settings
                assert isinstance(settings, StagePass), "a pass has a stage"
                speed = self._cluster.nodes[self._cluster.ranks[rank].node].compute
                end = now + self._seconds[operation.kind, settings.stage] / speed + turn.after
                self._busy.add(rank)
                self._next[rank] += 1
                self._step_ends[turn.step] = max(end, self._step_ends.get(turn.step, 0.0))
                heapq.heappush(events, (end, 0, turn.key))
                passes.append(PlayedPass(rank, operation.kind, settings, now, end))

    def _is_met(self, edge: Edge, key: int) -> bool:
        batch = key // self._num_operations - edge.lag
        return batch < 0 or batch * self._num_operations + edge.target in self._done

    def _send(self, key: int, now: float, events: list[tuple[float, int, int]]) -> None:
        batch, index = divmod(key, self._num_operations)
        if index not in self._sends:
            return
        send = batch * self._num_operations + self._sends[index]
        transfer = self._operation(send)
        assert isinstance(transfer, Transfer), "sends are transfers"
        source, destination = (self._cluster.ranks[rank].node for rank in transfer.groups[0])
        if source == destination or not transfer.num_bytes:
            rate = self._cluster.nodes[source].intra_bandwidth or self._costs.rate_added
            heapq.heappush(events, (now + self._costs.round_seconds + transfer.num_bytes / rate, 1, send))
            return
        # A connection sends one message after another.
        waiting = self._connections.setdefault(transfer.groups[0], [])
        waiting.append(send)
        if len(waiting) == 1:
            self._links.begin(send, transfer.num_bytes, self._way(source, destination), now)

    def _arrive(self, send: int, now: float) -> None:
        """End a message on the links, and begin the next one of its connection."""
        self._links.end(send, now)
        transfer = self._operation(send)
        assert isinstance(transfer, Transfer), "sends are transfers"
        waiting = self._connections[transfer.groups[0]]
        waiting.pop(0)
        if waiting:
            following = self._operation(waiting[0])
            assert isinstance(following, Transfer), "sends are transfers"
            source, destination = (self._cluster.ranks[rank].node for rank in transfer.groups[0])
            self._links.begin(waiting[0], following.num_bytes, self._way(source, destination), now)

    def _way(self, source: int, destination: int) -> tuple[int, ...]:
        """Return the links between two nodes."""
        sides = enumerate(crossed(self._cluster, source, destination))
        uplinks = [self._uplinks + 2 * rack + side for side, racks in sides for rack in racks]
        return (2 * source, 2 * destination + 1, *uplinks)

    def _finish(self, ends: Mapping[int, float]) -> float:
        """Return when all gradients are summed, their norm is known where the task clips, and all are updated."""
        free = dict(ends)
        for one in self._plan.operations:
            if isinstance(one, Local) and one.kind == "norm":
                for rank in one.groups[0]:
                    free[rank] += one.num_elements / len(one.groups[0]) / self._costs.local_rate("norm")
            elif isinstance(one, Transfer) and one.message >= 0:
                for group in one.groups:
                    end = max(free[rank] for rank in group) + self._sum_seconds(one)
                    free.update(dict.fromkeys(group, end))
        finished = [end + self._updates[rank] for rank, end in free.items()]
        num_rounds = 2 * math.ceil(math.log2(max(2, len(free))))
        return max(finished) + num_rounds * self._costs.round_seconds

    def _period(self) -> float:
        """Return the time between the ends of two steps."""
        period = (self._step_ends[_STEPS - 1] - self._step_ends[_STEPS - 1 - _MEASURED]) / _MEASURED
        return max(period, self._busiest_seconds(plan_traffic(self._plan, self._cluster)))

    def _sum_seconds(self, transfer: Transfer) -> float:
        """Return the time of an all-reduce by itself: that of its busiest link, and of its rounds."""
        num_rounds = outline(transfer.collective, transfer.algorithm, len(transfer.groups[0])).num_rounds
        busiest = self._busiest_seconds(transfer_traffic(transfer, self._cluster))
        return busiest + num_rounds * self._costs.round_seconds + self._costs.transfer_seconds

    def _busiest_seconds(self, traffic: Traffic) -> float:
        """Return how long the busiest interface or uplink carries these bytes."""
        share = self._costs.link_share
        nodes, racks = self._cluster.nodes, self._cluster.racks
        rates = (
            (traffic.node_out, [node.bandwidth_out for node in nodes]),
            (traffic.node_in, [node.bandwidth_in for node in nodes]),
            (traffic.rack_out, [rack.uplink_out for rack in racks]),
            (traffic.rack_in, [rack.uplink_in for rack in racks]),
        )
        return max(
            [0.0]
            + [
                float(num_bytes) / (rate * share)
                for moved, of_links in rates
                for num_bytes, rate in zip(moved, of_links, strict=True)
            ]
        )


def _num_examples(plan: Plan) -> int:
    return next(
        one.num_elements for one in plan.operations if isinstance(one, Local) and isinstance(one.settings, StagePass)
    )
