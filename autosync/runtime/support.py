"""What this engine runs. Everything else is refused before training starts; nothing is run as something else."""

from __future__ import annotations

from collections.abc import Iterator

from autosync.errors import OperationError
from autosync.plan.types import Local, Plan
from autosync.strategy.representation import TopK

# Top-k sends positions as numbers of four bytes.
_MOST_ELEMENTS = 2**31 - 1


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
    for operation in plan.operations:
        if isinstance(operation, Local) and isinstance(operation.settings, TopK):
            for region in operation.inputs:
                num_elements = plan.regions[region].num_elements
                if operation.kind == "encode" and num_elements > _MOST_ELEMENTS:
                    name = plan.parts[plan.regions[region].part].name
                    yield f"{name} has {num_elements} elements, and top_k numbers no more than {_MOST_ELEMENTS}"
