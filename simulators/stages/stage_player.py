"""Plays one step of a plan with stages: passes on ranks, sends on links, then sums within stages and updates."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from typing import NamedTuple

from autosync.plan.outline import outline
from autosync.plan.traffic import transfer_traffic
from autosync.plan.types import Local, Plan, StagePass, Transfer
from autosync.simulators.stages.fluid_links import FluidLinks
from autosync.specs.cluster import ClusterSpec
from autosync.specs.costs import Costs
from autosync.specs.model import ModelSpec
from autosync.specs.uplinks import crossed
from autosync.strategy.stage_compute import pass_seconds, update_seconds


class PlayedPass(NamedTuple):
    """A pass as it was played."""

    rank: int
    kind: str
    place: StagePass
    begin: float
    end: float


class PlayedStep(NamedTuple):
    """A played step: its passes, the end of each rank's passes, and the seconds of the whole step."""

    passes: list[PlayedPass]
    ends: dict[int, float]
    seconds: float


def play_stages(plan: Plan, model: ModelSpec, cluster: ClusterSpec, costs: Costs) -> PlayedStep:
    """Play one step from rest. A step ends when all ranks have ended, because they tell each other the loss."""
    return _Player(plan, model, cluster, costs).run()


class _Player:
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
        self._queues: dict[int, list[int]] = {}
        self._sends: dict[int, int] = {}
        for index, one in enumerate(plan.operations):
            if isinstance(one, Local) and isinstance(one.settings, StagePass):
                self._queues.setdefault(one.groups[0][0], []).append(index)
            elif isinstance(one, Transfer) and one.collective == "send":
                self._sends[one.after[0].target] = index
        self._done: set[int] = set()
        self._next = dict.fromkeys(self._queues, 0)
        self._busy: set[int] = set()
        self._connections: dict[tuple[int, ...], list[int]] = {}

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
                now, is_message, index = heapq.heappop(events)
                self._done.add(index)
                if not is_message:
                    rank = self._plan.operations[index].groups[0][0]
                    self._busy.discard(rank)
                    ends[rank] = now
                    self._send(index, now, events)
            else:
                break
            self._start(now, events, passes)
        return PlayedStep(passes, ends, self._finish(ends))

    def _start(self, now: float, events: list[tuple[float, int, int]], passes: list[PlayedPass]) -> None:
        """Begin the next pass of each rank that is free and has what the pass needs."""
        for rank, queue in self._queues.items():
            place = self._next[rank]
            if rank in self._busy or place == len(queue):
                continue
            operation = self._plan.operations[queue[place]]
            assert isinstance(operation, Local), "passes are local"
            if all(edge.target in self._done for edge in operation.after):
                settings = operation.settings
                assert isinstance(settings, StagePass), "a pass has a stage"
                speed = self._cluster.nodes[self._cluster.ranks[rank].node].compute
                end = now + self._seconds[operation.kind, settings.stage] / speed
                self._busy.add(rank)
                self._next[rank] += 1
                heapq.heappush(events, (end, 0, queue[place]))
                passes.append(PlayedPass(rank, operation.kind, settings, now, end))

    def _send(self, index: int, now: float, events: list[tuple[float, int, int]]) -> None:
        send = self._sends.get(index)
        if send is None:
            return
        transfer = self._plan.operations[send]
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
        transfer = self._plan.operations[send]
        assert isinstance(transfer, Transfer), "sends are transfers"
        waiting = self._connections[transfer.groups[0]]
        waiting.pop(0)
        if waiting:
            following = self._plan.operations[waiting[0]]
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
        update = update_seconds(self._plan.stages, self._model, self._plan.num_workers)
        nodes = self._cluster.nodes
        finished = [end + update[rank] / nodes[self._cluster.ranks[rank].node].compute for rank, end in free.items()]
        num_rounds = 2 * math.ceil(math.log2(max(2, len(free))))
        return max(finished) + num_rounds * self._costs.round_seconds

    def _sum_seconds(self, transfer: Transfer) -> float:
        """Return the time of an all-reduce by itself: that of its busiest link, and of its rounds."""
        traffic, share = transfer_traffic(transfer, self._cluster), self._costs.link_share
        nodes, racks = self._cluster.nodes, self._cluster.racks
        busiest = max(
            [0.0]
            + [
                num_bytes / (node.bandwidth_out * share)
                for num_bytes, node in zip(traffic.node_out, nodes, strict=True)
            ]
            + [num_bytes / (node.bandwidth_in * share) for num_bytes, node in zip(traffic.node_in, nodes, strict=True)]
            + [num_bytes / (rack.uplink_out * share) for num_bytes, rack in zip(traffic.rack_out, racks, strict=True)]
            + [num_bytes / (rack.uplink_in * share) for num_bytes, rack in zip(traffic.rack_in, racks, strict=True)]
        )
        num_rounds = outline(transfer.collective, transfer.algorithm, len(transfer.groups[0])).num_rounds
        return float(busiest) + num_rounds * self._costs.round_seconds + self._costs.transfer_seconds


def _num_examples(plan: Plan) -> int:
    return next(
        one.num_elements for one in plan.operations if isinstance(one, Local) and isinstance(one.settings, StagePass)
    )
