"""Which of a plan's updates are the engine's to make, and which the user's optimizer makes itself."""

from __future__ import annotations

from dataclasses import dataclass

from autosync.plan.types import Local, Operation, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUpdates:
    """The update operations (by position) and the variables that are the engine's, on whichever rank."""

    operations: frozenset[int]
    variables: frozenset[str]


def engine_updates(plan: Plan) -> EngineUpdates:
    """Which updates are the engine's: all with forward overlap, else those not made by every worker, and what follows.

    The user's optimizer takes a variable whole or not at all. So where one part of a variable is updated at a server,
    the engine updates its other parts as well, and with them whatever else their messages hold.
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
        norms = {norm_awaited(plan, index) for index in touched} if _has_norms(plan) else {None}
        if norms != {None} and (ours or len(norms) > 1):
            # Clipping and unscaling take all gradients, which are then the engine's alone to know; or all of each
            # kind, where some gradients are shared and others each worker's own.
            ours = set(touched)
    while True:
        variables = frozenset(name for index in ours for name in touched[index])
        more = {index for index, names in touched.items() if index not in ours and names & variables}
        if not more:
            return EngineUpdates(operations=frozenset(ours), variables=variables)
        ours |= more


def follows_users_updates(plan: Plan) -> bool:
    """Whether something is left to do when the user's optimizer has updated: parameters are averaged, say."""
    ours = engine_updates(plan).operations
    users = {
        index
        for index, operation in enumerate(plan.operations)
        if isinstance(operation, Local) and operation.kind == "update" and index not in ours
    }
    return any(edge.event == "operation" and edge.target in users for one in plan.operations for edge in one.after)


def _has_norms(plan: Plan) -> bool:
    return any(region.kind == "norm" for region in plan.regions)


def norm_operations(plan: Plan) -> frozenset[int]:
    """The operations (by position) whose end lets updates know a norm; none where the task neither clips nor scales."""
    if not _has_norms(plan):
        return frozenset()
    return frozenset(
        edge.target
        for operation in plan.operations
        if isinstance(operation, Local) and operation.kind == "update"
        for edge in operation.after
        if edge.event == "operation" and _norm_of(plan, edge.target) is not None
    )


def norm_awaited(plan: Plan, index: int) -> int | None:
    """The region of the norm that an update waits for, if it does."""
    for edge in plan.operations[index].after:
        if edge.event == "operation":
            region = _norm_of(plan, edge.target)
            if region is not None:
                return region
    return None


def _norm_of(plan: Plan, index: int) -> int | None:
    """The region of the norm that an operation works on, if it does."""
    operation = plan.operations[index]
    region = operation.outputs[0] if isinstance(operation, Local) else operation.regions[0]
    return region if plan.regions[region].kind == "norm" else None


def is_by_every_worker(plan: Plan, operation: Operation) -> bool:
    """Whether every worker does the whole of a local operation."""
    return isinstance(operation, Local) and not operation.sharded and len(operation.groups[0]) == plan.num_workers
