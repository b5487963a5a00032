"""Which of a plan's updates are the engine's to make, and which the user's optimizer makes itself."""

from __future__ import annotations

from dataclasses import dataclass

from autosync.plan.types import Local, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUpdates:
    """The update operations (by position) and the variables that are the engine's, on whichever rank."""

    operations: frozenset[int]
    variables: frozenset[str]


def engine_updates(plan: Plan) -> EngineUpdates:
    """Which updates are the engine's: those not made by every worker, and all others of their variables.

    The user's optimizer takes a variable whole or not at all. So where one part of a variable is updated at a server,
    the engine updates its other parts as well, and with them whatever else their messages hold.
    """
    touched = {
        index: {plan.parts[plan.regions[region].part].variable.name for region in operation.outputs}
        for index, operation in enumerate(plan.operations)
        if isinstance(operation, Local) and operation.kind == "update"
    }
    ours = {index for index in touched if not _is_by_every_worker(plan, index)}
    while True:
        variables = frozenset(name for index in ours for name in touched[index])
        more = {index for index, names in touched.items() if index not in ours and names & variables}
        if not more:
            return EngineUpdates(operations=frozenset(ours), variables=variables)
        ours |= more


def _is_by_every_worker(plan: Plan, index: int) -> bool:
    operation = plan.operations[index]
    assert isinstance(operation, Local), "updates are local"
    return not operation.sharded and len(operation.groups[0]) == plan.num_workers
