"""Plays a plan with stages: passes on ranks, sends on links, sums within stages, and updates.

With a flush, one step from rest is played. Without one, several steps are played, and a step takes as long as from the
end of one to the end of the next, when the pipeline is full. Under `2bw`, sums and norms are not played there, because
the passes of the next step hide them. Where stages stash parameters, a stage waits for its sums and its update. No step
is shorter than all bytes of the busiest link take, those of the sums included.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from autosync.plan.rank_passes import RankPass, most_late, passes_of
from autosync.plan.types import Edge, Local, Operation, Plan, StagePass, Transfer
from autosync.simulators.stages.closing import ClosingWork, rounds_seconds
from autosync.simulators.stages.fluid_links import FluidLinks
from autosync.simulators.stages.stage_links import StageLinks
from autosync.specs.cluster import ClusterSpec
from autosync.specs.costs import Costs
from autosync.specs.model import ModelSpec
from autosync.strategy.stage_compute import pass_seconds, update_seconds
from autosync.strategy.stages import holders_of_variables

_STEPS, _MEASURED = 8, 4
"""Without a flush, so many steps are played, and more if passes are several steps late; the last are measured."""

_PASS, _MESSAGE, _UPDATE, _WORK = range(4)
"""What ends in an event."""


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
    """A pass of a rank: its key, the step in which the rank makes it, and what the rank does after it, in seconds.

    `updates`: the rank's stage is updated after it.
    """

    key: int
    step: int
    after: float
    updates: bool


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
        self._network = StageLinks(cluster, costs)
        self._links = FluidLinks(self._network.rates, self._network.bursts)
        self._updates = self._update_seconds()
        self._num_steps = 1 if plan.flushes else _STEPS - 1 + max(1, most_late(plan))
        self._num_operations = len(plan.operations)
        self._num_keys = self._num_operations * (self._num_steps + 1)
        self._closing = ClosingWork(plan, self._network, self._links, costs, first_key=self._num_keys)
        self._queues = {rank: list(self._turns(rank)) for rank in range(plan.num_workers)}
        # The message that follows a pass. One without bytes is not sent, and no pass waits for it.
        self._sends = {
            one.after[0].target: index
            for index, one in enumerate(plan.operations)
            if isinstance(one, Transfer) and one.collective == "send" and one.num_bytes
        }
        self._awaited = self._awaited_edges()
        self._done: set[int] = set()
        self._next = dict.fromkeys(self._queues, 0)
        # The time of each event, its kind, and the key of its operation or the number of the closing work.
        self._events: list[tuple[float, int, int]] = []
        self._passes: list[PlayedPass] = []
        self._ends: dict[int, float] = {}
        self._busy: set[int] = set()
        self._connections: dict[tuple[int, ...], list[int]] = {}
        self._step_ends: dict[int, float] = {}
        # By stage and batch, the passes after which the stage is updated, as far as they are done.
        self._to_update: dict[tuple[int, int], list[int]] = {}

    def _turns(self, rank: int) -> Iterator[_Turn]:
        """Yield the passes of a rank, of all steps that are played."""
        passes = passes_of(self._plan, rank)
        last = self._updating_pass(passes)
        for step in range(self._num_steps):
            for number, one in enumerate(passes):
                if step >= one.late:
                    key = (step - one.late) * self._num_operations + one.operation
                    after = self._updates[rank] if number == last and not self._plan.stashes else 0.0
                    yield _Turn(key, step, after, updates=number == last and self._plan.stashes)

    def _updating_pass(self, passes: list[RankPass]) -> int:
        """Return the position of the pass after which a rank updates before it goes on; -1 if there is none."""
        if self._plan.flushes:
            return -1
        if not self._plan.stashes:
            return len(passes) - 1
        return max(range(len(passes)), key=lambda number: (not passes[number].is_forward, passes[number].operation))

    def _update_seconds(self) -> list[float]:
        """Return how long each rank updates, with what the gradient and the update of a variable take beside it."""
        seconds, nodes = update_seconds(self._plan.stages, self._model, self._plan.num_workers), self._cluster.nodes
        num_held = Counter(
            rank for ranks in holders_of_variables(self._plan.stages, self._model).values() for rank in ranks
        )
        each = self._costs.processor.gradient + self._costs.processor.update
        return [
            one / nodes[self._cluster.ranks[rank].node].compute + num_held[rank] * each
            for rank, one in enumerate(seconds)
        ]

    def _awaited_edges(self) -> dict[int, list[Edge]]:
        """Return what each pass waits for: passes of its rank, and messages.

        A rank makes no pass while its update, which others wait for too, is under way; so updates are not among these.
        """
        operations, sent = self._plan.operations, set(self._sends.values())
        return {
            index: [
                edge
                for edge in one.after
                if edge.event == "operation" and (isinstance(operations[edge.target], Local) or edge.target in sent)
            ]
            for index, one in enumerate(operations)
            if isinstance(one, Local) and isinstance(one.settings, StagePass)
        }

    def _operation(self, key: int) -> Operation:
        return self._plan.operations[key % self._num_operations]

    def run(self) -> PlayedStep:
        now = 0.0
        self._start(now)
        while True:
            of_link = self._links.next_end()
            if of_link is not None and of_link[0] <= (self._events[0][0] if self._events else math.inf):
                now, key = of_link
                self._arrive(key, now)
            elif self._events:
                now, what, key = heapq.heappop(self._events)
                self._end(what, key, now)
            else:
                break
            self._start(now)
        return PlayedStep(self._passes, self._ends, self._finish() if self._plan.flushes else self._period())

    def _end(self, what: int, key: int, now: float) -> None:
        """End a pass, what follows a message, an update, or closing work."""
        if what == _WORK:
            self._await(self._closing.end(key, now))
            return
        rank = self._operation(key).groups[0][0]
        if what == _UPDATE:
            self._busy.discard(rank)
        else:
            self._done.add(key)
        if what == _PASS:
            self._ends[rank] = now
            self._send(key, now)
            if not self._awaits_update(rank, key, now):
                self._busy.discard(rank)
            if self._plan.flushes and self._next[rank] == len(self._queues[rank]):
                self._await(self._closing.come(rank, now))

    def _await(self, ends: Iterable[tuple[float, int]]) -> None:
        """Await the ends of closing work."""
        for end, number in ends:
            heapq.heappush(self._events, (end, _WORK, number))

    def _awaits_update(self, rank: int, key: int, now: float) -> bool:
        """Whether a rank's stage is updated after a pass. It begins when the last of its ranks has come so far."""
        if not self._queues[rank][self._next[rank] - 1].updates:
            return False
        operation = self._operation(key)
        assert isinstance(operation, Local) and isinstance(operation.settings, StagePass), "a pass has a stage"  # noqa: PT018
        stage = operation.settings.stage
        came = self._to_update.setdefault((stage, key // self._num_operations), [])
        came.append(key)
        ranks = self._plan.stages[stage].ranks
        if len(came) == len(ranks):
            sums = [
                self._sum_seconds(one)
                for one in self._plan.operations
                if isinstance(one, Transfer) and one.message >= 0 and one.groups[0][0] in ranks
            ]
            for other in came:
                update = self._updates[self._operation(other).groups[0][0]]
                heapq.heappush(self._events, (now + math.fsum(sums) + update, _UPDATE, other))
        return True

    def _start(self, now: float) -> None:
        """Begin the next pass of each rank that is free and has what the pass needs."""
        for rank, queue in self._queues.items():
            place = self._next[rank]
            if rank in self._busy or place == len(queue):
                continue
            turn = queue[place]
            operation = self._operation(turn.key)
            assert isinstance(operation, Local), "passes are local"
            if all(self._is_met(edge, turn.key) for edge in self._awaited[turn.key % self._num_operations]):
                settings = operation.settings
                assert isinstance(settings, StagePass), "a pass has a stage"
                speed = self._cluster.nodes[self._cluster.ranks[rank].node].compute
                seconds = self._costs.local_seconds + self._seconds[operation.kind, settings.stage] / speed
                end = now + seconds + turn.after
                self._busy.add(rank)
                self._next[rank] += 1
                self._step_ends[turn.step] = max(end, self._step_ends.get(turn.step, 0.0))
                heapq.heappush(self._events, (end, _PASS, turn.key))
                self._passes.append(PlayedPass(rank, operation.kind, settings, now, end))

    def _is_met(self, edge: Edge, key: int) -> bool:
        batch = key // self._num_operations - edge.lag
        return batch < 0 or batch * self._num_operations + edge.target in self._done

    def _send(self, key: int, now: float) -> None:
        batch, index = divmod(key, self._num_operations)
        if index not in self._sends:
            return
        send = batch * self._num_operations + self._sends[index]
        transfer = self._operation(send)
        assert isinstance(transfer, Transfer), "sends are transfers"
        # A connection sends one message after another.
        waiting = self._connections.setdefault(transfer.groups[0], [])
        waiting.append(send)
        if len(waiting) == 1:
            self._begin(send, now)

    def _begin(self, send: int, now: float) -> None:
        """Begin a message on the links."""
        transfer = self._operation(send)
        assert isinstance(transfer, Transfer), "sends are transfers"
        way = self._network.way(*transfer.groups[0])
        self._links.begin(send, transfer.num_bytes, way, now, limit=self._network.flow_limit(way))

    def _arrive(self, send: int, now: float) -> None:
        """End a message on the links, and begin the next one of its connection. Closing work counts its own."""
        self._links.end(send, now)
        if send >= self._num_keys:
            self._await(self._closing.arrive(send, now))
            return
        heapq.heappush(self._events, (now + self._costs.round_seconds, _MESSAGE, send))
        waiting = self._connections[self._operation(send).groups[0]]
        waiting.pop(0)
        if waiting:
            self._begin(waiting[0], now)

    def _finish(self) -> float:
        """Return when all gradients are summed, their norm is known where the task clips, and all are updated."""
        free = self._closing.free
        finished = [end + self._updates[rank] for rank, end in free.items()]
        num_rounds = 2 * math.ceil(math.log2(max(2, len(free))))
        return max(finished) + num_rounds * self._costs.round_seconds

    def _period(self) -> float:
        """Return the time between the ends of two steps."""
        last = self._num_steps - 1
        period = (self._step_ends[last] - self._step_ends[last - _MEASURED]) / _MEASURED
        return max(period, self._network.seconds(one for one in self._plan.operations if isinstance(one, Transfer)))

    def _sum_seconds(self, transfer: Transfer) -> float:
        """Return the time of an all-reduce by itself: that of its busiest link, and of its rounds."""
        return self._network.seconds([transfer]) + rounds_seconds(transfer, self._costs)


def _num_examples(plan: Plan) -> int:
    return next(
        one.num_elements for one in plan.operations if isinstance(one, Local) and isinstance(one.settings, StagePass)
    )
