"""Divides a plan's updates between the engine and the user's optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from autosync.plan.types import Local, Operation, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUpdates:
    """The update operations (by position) and the variables that the engine updates, on any rank."""

    operations: frozenset[int]
    variables: frozenset[str]


def engine_updates(plan: Plan) -> EngineUpdates:
    """Return the updates that the engine makes: all with forward overlap, else at least those not made by every worker.

    The user's optimizer updates a variable as a whole or not at all. So where one part of a variable is updated at a
    server, the engine updates its other parts as well, and with them everything else that their messages hold.
    """
    touched = {
        index: {plan.parts[plan.regions[region].part].variable.name for region in operation.outputs}
        for index, operation in enumerate(plan.operations)
        if isinstance(operation, Local) and operation.kind == "update"
    }
    if plan.overlap == "forward":
        ours = set(touched)
    else:
        ours = {index for index in touched if not is_by_every_worker(plan, plan.operations[index])}
        norms = {norm_awaited(plan, index) for index in touched} if has_norms(plan) else {None}
        if norms != {None} and (ours or len(norms) > 1):
            # Clipping and unscaling need the norm of all gradients. The user's optimizer cannot compute it if only the
            # engine has some of the gradients, or if some are shared and others are each worker's own.
            ours = set(touched)
    while True:
        variables = frozenset(name for index in ours for name in touched[index])
        more = {index for index, names in touched.items() if index not in ours and names & variables}
        if not more:
            return EngineUpdates(operations=frozenset(ours), variables=variables)
        ours |= more


def follows_users_updates(plan: Plan) -> bool:
    """Whether any operation waits for an update by the user's optimizer: averaging parameters, for example."""
    ours = engine_updates(plan).operations
    users = {
        index
        for index, operation in enumerate(plan.operations)
        if isinstance(operation, Local) and operation.kind == "update" and index not in ours
    }
    return any(edge.event == "operation" and edge.target in users for one in plan.operations for edge in one.after)


def has_norms(plan: Plan) -> bool:
    """Whether updates wait for the norm of all gradients, for clipping or loss scaling."""
    return any(region.kind == "norm" for region in plan.regions)


def norm_operations(plan: Plan) -> frozenset[int]:
    """Return the operations (by position) that complete a norm for updates; none without clipping and scaling."""
    if not has_norms(plan):
        return frozenset()
    return frozenset(
        edge.target
        for operation in plan.operations
        if isinstance(operation, Local) and operation.kind == "update"
        for edge in operation.after
        if edge.event == "operation" and _norm_of(plan, edge.target) is not None
    )


def norm_awaited(plan: Plan, index: int) -> int | None:
    """Return the region of the norm that an update waits for, or None."""
    for edge in plan.operations[index].after:
        if edge.event == "operation":
            region = _norm_of(plan, edge.target)
            if region is not None:
                return region
    return None


def _norm_of(plan: Plan, index: int) -> int | None:
    """Return the region of the norm that an operation works on, or None."""
    operation = plan.operations[index]
    region = operation.outputs[0] if isinstance(operation, Local) else operation.regions[0]
    return region if plan.regions[region].kind == "norm" else None


def is_by_every_worker(plan: Plan, operation: Operation) -> bool:
    """Whether an operation is local and every worker (with stages, every one of its message) does all of it."""
    if not isinstance(operation, Local) or operation.sharded:
        return False
    return bool(plan.stages) or len(operation.groups[0]) == plan.num_workers
