"""A plan as text: one line an operation, with its name, its groups, what it reads and writes, and what it waits for.

Numbers behind `after` are positions of operations; `-1` behind one means an iteration earlier.
"""

from __future__ import annotations

from collections.abc import Sequence

from autosync.plan.types import Edge, Groups, Plan, Transfer


def written(plan: Plan) -> str:
    """A plan as text."""
    lines = []
    for index, operation in enumerate(plan.operations):
        after = _edges(operation.after)
        if isinstance(operation, Transfer):
            size = f"{operation.num_elements} x {operation.item_bytes} B"
            size += f" (at most {operation.max_elements})" if operation.max_elements != operation.num_elements else ""
            what = f"{operation.collective} {operation.algorithm} {_groups(operation.groups)}"
            what += f" within {_groups(operation.within)}" if operation.within else ""
            what += f": {_regions(plan, operation.regions)}, {size}, lane {operation.lane}"
        else:
            what = f"{operation.kind}{' (shard)' if operation.sharded else ''} {_groups(operation.groups)}"
            what += f": {_regions(plan, operation.inputs)} -> {_regions(plan, operation.outputs)}"
            what += f", {operation.num_elements}"
        what += f", every {operation.every}" if operation.every > 1 else ""
        lines.append(f"{index} {what} after {after}")
    lines.extend(
        f"{gate.kind}{f' {gate.variable}' if gate.variable >= 0 else ''} after {_edges(gate.after)}"
        for gate in plan.gates
    )
    return "\n".join(lines)


def _groups(groups: Groups) -> str:
    return " ".join("".join(map(str, group)) for group in groups)


def _regions(plan: Plan, indexes: Sequence[int]) -> str:
    regions = [plan.regions[index] for index in indexes]
    return " + ".join(f"{r.kind}[{r.start}:{r.stop}]{'' if r.dtype == 'float32' else ' ' + r.dtype}" for r in regions)


def _edges(edges: Sequence[Edge]) -> str:
    names = {"operation": "", "grad_ready": "grad ", "step_called": "step"}
    found = [
        f"{names[edge.event]}{'' if edge.target < 0 else edge.target}{f'-{edge.lag}' if edge.lag else ''}"
        for edge in edges
    ]
    return ", ".join(found) or "nothing"
