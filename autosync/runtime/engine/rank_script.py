"""A plan as one rank sees it: what each of its operations waits for, and what waits for each. Pure, and free of torch.

The rank's operations and the plan's gates are *items*, numbered in one sequence: first the operations in the plan's
order, then the gates. Items wait for events in training (a gradient, the call of `step()`, the user's own update) and
for other items; an item is ready when it has nothing left to wait for. Edges to operations in which the rank takes no
part are ignored, and so are gradients on a rank that computes none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from autosync.plan.types import Edge, GateKind, Local, Plan, Transfer
from autosync.runtime.local.engine_updates import EngineUpdates
from autosync.runtime.memory.layout import lags


class Link(NamedTuple):
    """Another item, and the number of iterations between the two."""

    item: int
    lag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The operations of one rank in an iteration, and what they wait for.

    `operations` are positions in the plan, by item. `num_waits` counts what an item waits for in its own iteration;
    `earlier` lists the items of earlier iterations that it waits for, `followers` the items that wait for it. `lanes`
    are the items of each lane in order; operations in no lane are local work, which has its own thread. `instant` items
    are the user's work (the updates of their optimizer, the norm of their own clipping), which counts as done as soon
    as it is ready. An item with `every` k takes place in every k-th iteration. `lateness` is the number of iterations
    after which an operation must be done: its message's parameters may be that late.
    """

    operations: tuple[int, ...]
    gates: Mapping[tuple[GateKind, int], int]
    num_waits: tuple[int, ...]
    earlier: tuple[tuple[Link, ...], ...]
    followers: tuple[tuple[Link, ...], ...]
    on_gradient: tuple[tuple[int, ...], ...]
    on_step_called: tuple[int, ...]
    on_user_updated: tuple[int, ...]
    lanes: Mapping[int, tuple[int, ...]]
    instant: frozenset[int]
    every: tuple[int, ...]
    lateness: tuple[int, ...]

    @property
    def num_items(self) -> int:
        return len(self.num_waits)

    @property
    def longest_lag(self) -> int:
        """The largest number of iterations between any operation and another one that it waits for."""
        return max((link.lag for links in self.earlier[: len(self.operations)] for link in links), default=0)


def script_of(
    plan: Plan, rank: int, num_variables: int, updates: EngineUpdates, *, in_one_order: bool = False
) -> Script:
    """Make the script of a rank. `updates` says which updates are the engine's.

    `in_one_order`: there is only one lane, with all operations in the plan's order, local ones included. In that order
    each operation comes after those that it waits for, so one thread can do them all.
    """
    mine = [
        i
        for i, operation in enumerate(plan.operations)
        # The trainer makes the passes of stages and their sends, which are in no message.
        if operation.message >= 0 and any(rank in group for group in operation.groups)
    ]
    writer = _Writer(plan, rank, mine, num_variables)
    instant: set[int] = set()
    late = lags(plan)
    for item, index in enumerate(mine):
        operation = plan.operations[index]
        is_users = _is_users(plan, index, updates)
        writer.add(item, operation.after)
        if is_users:
            instant.add(item)
            writer.await_users_update(item)
        if isinstance(operation, Transfer) and not writer.num_waits[item]:
            # The transfer waits for nothing in this iteration; an example is the sum of a norm to which the rank adds
            # nothing. But other members may wait long before they begin, and this time must not count as the
            # transfer's.
            writer.await_gradient(item, _first_gradient(plan, operation.message))
    gates: dict[tuple[GateKind, int], int] = {}
    for gate in plan.gates:
        gates[gate.kind, gate.variable] = item = len(mine) + len(gates)
        writer.add(item, gate.after)
    lanes: dict[int, list[int]] = {}
    for item, index in enumerate(mine):
        operation = plan.operations[index]
        if in_one_order:
            if item not in instant:
                lanes.setdefault(0, []).append(item)
        elif isinstance(operation, Transfer):
            lanes.setdefault(operation.lane, []).append(item)
    every = [plan.operations[index].every for index in mine] + [1] * len(gates)
    return Script(
        operations=tuple(mine),
        gates=gates,
        num_waits=tuple(writer.num_waits),
        earlier=tuple(map(tuple, writer.earlier)),
        followers=tuple(map(tuple, writer.followers)),
        on_gradient=tuple(map(tuple, writer.on_gradient)),
        on_step_called=tuple(writer.on_step_called),
        on_user_updated=tuple(writer.on_user_updated),
        lanes={lane: tuple(items) for lane, items in sorted(lanes.items())},
        instant=frozenset(instant),
        every=tuple(every),
        lateness=tuple(late[plan.operations[index].message] for index in mine),
    )


class _Writer:
    """Builds the lists of a script, edge by edge."""

    def __init__(self, plan: Plan, rank: int, mine: list[int], num_variables: int) -> None:
        num_items = len(mine) + len(plan.gates)
        self.num_waits = [0] * num_items
        self.earlier: list[list[Link]] = [[] for _ in range(num_items)]
        self.followers: list[list[Link]] = [[] for _ in range(num_items)]
        self.on_gradient: list[list[int]] = [[] for _ in range(num_variables)]
        self.on_step_called: list[int] = []
        self.on_user_updated: list[int] = []
        self._item_of = {index: item for item, index in enumerate(mine)}
        self._computes = plan.ranks[rank].role == "worker"

    def add(self, item: int, edges: tuple[Edge, ...]) -> None:
        for edge in dict.fromkeys(edges):
            if edge.event == "operation":
                self._add_operation(item, edge)
            elif edge.event == "step_called":
                self.on_step_called.append(item)
                self.num_waits[item] += 1
            elif self._computes:
                self.on_gradient[edge.target].append(item)
                self.num_waits[item] += 1

    def await_gradient(self, item: int, variable: int) -> None:
        """Let an item wait for a variable's gradient on a worker. A server has no gradients to wait for."""
        if self._computes:
            self.on_gradient[variable].append(item)
            self.num_waits[item] += 1

    def await_users_update(self, item: int) -> None:
        self.on_user_updated.append(item)
        self.num_waits[item] += 1

    def _add_operation(self, item: int, edge: Edge) -> None:
        target = self._item_of.get(edge.target)
        if target is None:
            return
        self.followers[target].append(Link(item, edge.lag))
        if edge.lag:
            self.earlier[item].append(Link(target, edge.lag))
        else:
            self.num_waits[item] += 1


def _first_gradient(plan: Plan, message: int) -> int:
    """Return the first variable (by position) whose gradient a message waits for, or 0 if it waits for none."""
    gradients = (
        edge.target
        for operation in plan.operations
        if operation.message == message
        for edge in operation.after
        if edge.event == "grad_ready"
    )
    return next(gradients, 0)


def _is_users(plan: Plan, index: int, updates: EngineUpdates) -> bool:
    """Whether an operation is the user's own: an update by their optimizer, or the norm for their clipping."""
    operation = plan.operations[index]
    if not isinstance(operation, Local):
        return False
    if operation.kind == "update":
        return index not in updates.operations
    # With stages, each rank has a part of the gradients, so the plan sums the norm.
    return operation.kind == "norm" and not updates.operations and not plan.stages
