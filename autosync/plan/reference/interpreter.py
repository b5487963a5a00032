"""The interpreter: runs the compute, the lanes and the local work of all ranks in a random legal order.

Each rank goes through its steps: it uses variables (waiting at their gates), makes gradients, returns from backward,
calls `step()` and returns from it. Uses and gradients come in the model's order or in a random one; no result may
depend on it. A transfer takes place in a group as soon as it is first in its lane on every member and every member's
edges are met; a local operation as soon as its rank's edges are met. The interpreter makes passes over all agents that
have work left, in random order and each at its own pace, until all work is done. A pass in which no agent can go on is
a deadlock; the error says what each rank waits for.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from autosync.errors import DeadlockError
from autosync.plan.reference.compute import Compute
from autosync.plan.reference.moving import ReferenceMover, SentElements
from autosync.plan.reference.optimizers import reference_optimizer
from autosync.plan.reference.progress import Progress
from autosync.plan.reference.store import Store
from autosync.plan.reference.work import Worker
from autosync.plan.reference.workload import Array, Workload
from autosync.plan.types import Local, Plan, Transfer

PACES = (0.0, 0.3, 1.0, 1.0, 1.0, 1.0)
"""The probabilities with which an agent is tried in a pass.

An agent with pace 0 goes on only when no other agent can, so others may be several steps ahead.
"""

Agent: TypeAlias = tuple[Literal["compute", "local", "lane"], int, int]
"""The kind, the rank, and a number: 0 for compute, a local operation's position, or a lane's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a run, after all transfers of the last step.

    `parameters` has each worker's parameters, `sent` every transfer that took place, and `residuals` what error
    feedback holds back, by rank and region.
    """

    parameters: Sequence[dict[str, Array]]
    sent: Sequence[SentElements]
    residuals: Mapping[tuple[int, int], Array]


def interpret(plan: Plan, workload: Workload, *, num_steps: int, rng: random.Random) -> Outcome:
    """Run a plan for some steps in a random legal order."""
    return _Run(plan, workload, num_steps, rng).run()


class _Run:
    def __init__(self, plan: Plan, workload: Workload, num_steps: int, rng: random.Random) -> None:
        self._plan = plan
        self._rng = rng
        self._num_steps = num_steps
        store = Store(plan)
        self._progress = Progress(plan)
        self._worker = Worker(plan, store, self._progress, reference_optimizer(workload.model.optimizer))
        self._mover = ReferenceMover(plan, store)
        self._compute = Compute(
            plan, workload, store=store, progress=self._progress, worker=self._worker, num_steps=num_steps, rng=rng
        )
        self._lanes: dict[tuple[int, int], deque[tuple[int, int]]] = {}
        self._locals: dict[tuple[int, int], list[int]] = {}
        self._begun = [0] * len(plan.ranks)
        self._paces: dict[Agent, float] = {}
        # The agents that could not go on, with the `news` of their rank then. They are tried again when it grows.
        self._tried: dict[Agent, int] = {}

    def run(self) -> Outcome:
        while not self._is_done():
            self._begin_steps()
            agents = [agent for agent in self._agents() if self._tried.get(agent) != self._progress.news[agent[1]]]
            self._rng.shuffle(agents)
            moved = [self._advance(agent) for agent in agents if self._rng.random() < self._pace(agent)]
            if not any(moved) and not any(self._advance(agent) for agent in agents):
                raise DeadlockError(f"nothing can go on:\n{self._stuck()}")
        return Outcome(parameters=self._compute.parameters(), sent=self._mover.sent, residuals=self._worker.residuals)

    def _pace(self, agent: Agent) -> float:
        pace = self._paces.get(agent)
        if pace is None:
            pace = self._paces[agent] = self._rng.choice(PACES)
        return pace

    def _agents(self) -> Iterator[Agent]:
        for rank in self._plan.ranks:
            if not self._compute.is_done(rank.index):
                yield "compute", rank.index, 0
        for (rank_index, index), steps in self._locals.items():
            if steps:
                yield "local", rank_index, index
        for (rank_index, lane), queue in self._lanes.items():
            if queue:
                yield "lane", rank_index, lane

    def _is_done(self) -> bool:
        computed = all(self._compute.is_done(rank.index) for rank in self._plan.ranks)
        return computed and not any(self._locals.values()) and not any(self._lanes.values())

    def _begin_steps(self) -> None:
        """Queue the operations of all steps that ranks have reached; servers compute nothing and are past all steps."""
        for rank in self._plan.ranks:
            while self._begun[rank.index] < min(self._num_steps, self._compute.step_of(rank.index) + 1):
                self._begin(rank.index, self._begun[rank.index])
                self._begun[rank.index] += 1
                self._progress.news[rank.index] += 1

    def _begin(self, rank: int, step: int) -> None:
        for index in self._progress.operations_of(rank):
            operation = self._plan.operations[index]
            if not self._progress.happens(index, step):
                continue
            if isinstance(operation, Transfer):
                self._lanes.setdefault((rank, operation.lane), deque()).append((step, index))
            else:
                self._locals.setdefault((rank, index), []).append(step)

    def _advance(self, agent: Agent) -> bool:
        kind, rank, which = agent
        news = self._progress.news[rank]
        if kind == "compute":
            moved = self._compute.advance(rank, self._rng.randint(1, 4))
        elif kind == "local":
            moved = self._work(rank, which)
        else:
            moved = self._transfer(rank, which)
        if not moved:
            self._tried[agent] = news
        return moved

    def _work(self, rank: int, index: int) -> bool:
        """Do a local operation in one of the steps in which it is pending and allowed; return whether there was one."""
        operation = self._plan.operations[index]
        assert isinstance(operation, Local), "transfers wait in lanes"
        pending = self._locals[rank, index]
        for step in self._rng.sample(pending, len(pending)) if len(pending) > 1 else (*pending,):
            if self._progress.may(operation.after, rank, step):
                self._worker.do(operation, rank, step)
                self._progress.done(index, rank, step)
                pending.remove(step)
                return True
        return False

    def _transfer(self, rank: int, lane: int) -> bool:
        queue = self._lanes[rank, lane]
        if not queue:
            return False
        step, index = queue[0]
        operation = self._plan.operations[index]
        group = self._progress.group_of(index, rank)
        queues = [self._lanes.get((member, lane)) for member in group]
        if not all(heads and heads[0] == (step, index) for heads in queues):
            return False
        if not all(self._progress.may(operation.after, member, step) for member in group):
            return False
        self._mover.move(index, group, step)
        for member in group:
            self._lanes[member, lane].popleft()
            self._progress.done(index, member, step)
        return True

    def _stuck(self) -> str:
        """Return in words what each rank waits for, for the error."""
        lines = [f"  {self._compute.describe(rank.index)}" for rank in self._plan.ranks]
        for (rank_index, lane), queue in sorted(self._lanes.items()):
            if queue:
                lines.append(f"  rank {rank_index} lane {lane}: operation {queue[0][1]} of step {queue[0][0]}")
        for (rank_index, index), pending in sorted(self._locals.items()):
            lines.extend(f"  rank {rank_index}: local operation {index} of step {step}" for step in pending[:1])
        return "\n".join(lines)
