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
        if plan.clip_norm is not None and (ours or len({norm_awaited(plan, index) for index in touched}) > 1):
            # Clipping takes the norm of all gradients, which is then the engine's alone to know; or the norms, where
            # some gradients are shared and others each worker's own.
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


def norm_awaited(plan: Plan, index: int) -> int | None:
    """The region of the norm that an update waits for, if it does."""
    for edge in plan.operations[index].after:
        if edge.event == "operation":
            awaited = plan.operations[edge.target]
            region = awaited.outputs[0] if isinstance(awaited, Local) else awaited.regions[0]
            if plan.regions[region].kind == "norm":
                return region
    return None


def is_by_every_worker(plan: Plan, operation: Operation) -> bool:
    """Whether every worker does the whole of a local operation."""
    return isinstance(operation, Local) and not operation.sharded and len(operation.groups[0]) == plan.num_workers
