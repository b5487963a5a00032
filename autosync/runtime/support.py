"""What this engine runs. Everything else is refused before training starts; nothing is run as something else."""

from __future__ import annotations

from collections.abc import Iterator

from autosync.errors import OperationError
from autosync.plan.types import Local, Plan, Transfer
from autosync.runtime.updates import engine_updates

RUN_LOCALLY = frozenset({"average", "merge_rows", "norm", "read_rows", "rebuild", "update", "write_rows"})
MOVED = frozenset({"factors", "grad", "new_rows", "norm", "param", "rows"})


def unsupported(plan: Plan) -> list[str]:
    """Why the engine cannot run a plan; nothing if it can."""
    return list(dict.fromkeys(_reasons(plan)))


def refuse_unsupported(plan: Plan) -> None:
    """Refuse a plan that the engine cannot run."""
    reasons = unsupported(plan)
    if reasons:
        raise OperationError("this engine does not run the strategy: " + "; ".join(reasons[:3]))


def _reasons(plan: Plan) -> Iterator[str]:
    if plan.backend != "gloo":
        yield f"the backend is {plan.backend}; the engine runs on gloo"
    users = _users_updates(plan)
    for operation in plan.operations:
        if any(edge.event == "operation" and edge.target in users for edge in operation.after):
            yield f"{_where(plan, operation.message)} goes on after every worker's own update; the engine ends there"
        if any(edge.lag for edge in operation.after):
            yield f"{_where(plan, operation.message)} takes what is some steps old; the engine synchronises every step"
        if isinstance(operation, Local):
            if operation.kind not in RUN_LOCALLY:
                yield f"{_where(plan, operation.message)} needs {operation.kind}, which the engine does not do"
        else:
            yield from _transfer_reasons(plan, operation)


def _users_updates(plan: Plan) -> set[int]:
    """Updates that the user's optimizer makes, which is when the engine's step has ended."""
    engines = engine_updates(plan).operations
    return {
        index
        for index, operation in enumerate(plan.operations)
        if isinstance(operation, Local) and operation.kind == "update" and index not in engines
    }


def _transfer_reasons(plan: Plan, transfer: Transfer) -> Iterator[str]:
    place = _where(plan, transfer.message)
    if transfer.every > 1:
        yield f"{place} averages every {transfer.every} steps; the engine synchronises every step"
    kinds = {plan.regions[index].kind for index in transfer.regions}
    if not kinds <= MOVED:
        yield f"{place} moves what is {', '.join(sorted(kinds - MOVED))}; the engine has no codecs"


def _where(plan: Plan, message: int) -> str:
    parts = plan.messages[message]
    return f"the message of {parts[0]}" + (f" and {len(parts) - 1} more" if len(parts) > 1 else "")
