"""Gradients that are divided by the number of workers before they are summed, as stock DDP divides all.

The sum of gradients of float16 may be too large for the type, although their mean is not. Others are divided after the
sum, by the ranks that have it.
"""

from __future__ import annotations

from autosync.plan.types import Local, Plan


def divides_early(plan: Plan, operation: Local) -> bool:
    """Whether an operation that averages finds a sum of gradients that were divided already."""
    if operation.kind != "average":
        return False
    first = plan.regions[operation.inputs[0]]
    return first.kind == "grad" and plan.parts[first.part].variable.dtype == "float16"


def parts_divided_early(plan: Plan) -> frozenset[int]:
    """Return the parts (by position) whose gradients are divided when they come."""
    return frozenset(
        plan.regions[index].part
        for operation in plan.operations
        if isinstance(operation, Local) and divides_early(plan, operation)
        for index in operation.inputs
    )
