"""Detects plans that torch's own reducer executes in place of the engine: `runtime.stock.buckets` for tables.

It does not check whether a list of caps makes buckets of these sizes, because only DDP itself can tell.
"""

from __future__ import annotations

import numpy as np

from autosync.plan.tables import ALGORITHMS, COLLECTIVES, EVENTS, LOCAL_KINDS, Tables
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Overlap

_EVERY_WORKERS_OWN = [LOCAL_KINDS.index(kind) for kind in ("average", "norm", "update")]


def is_stock(tables: Tables, overlap: Overlap, model: ModelSpec) -> bool:
    """Return whether all transfers are native all-reduces of whole gradients over all workers, in one lane."""
    operations = tables.operations
    moves, everyone = operations.is_transfer, (tuple(range(tables.num_workers)),)
    if overlap != "backward" or tables.num_workers < 2 or not moves.any():
        return False
    if any(shape.groups != everyone or shape.within for shape in tables.shapes):
        return False
    if operations.every.max() > 1 or operations.lane[moves].max() > 0 or operations.sharded.any():
        return False
    if (operations.kind[moves] != COLLECTIVES.index("all_reduce")).any():
        return False
    if (operations.algorithm[moves] != ALGORITHMS.index("native")).any():
        return False
    if not np.isin(operations.kind[~moves], _EVERY_WORKERS_OWN).all():
        return False
    return _are_whole(tables, model)


def _are_whole(tables: Tables, model: ModelSpec) -> bool:
    """Return whether each transfer waits only for its gradients and has them whole, and none of them is sparse."""
    operations, after, seen = tables.operations, tables.operations.after, set[int]()
    for number in np.flatnonzero(operations.is_transfer).tolist():
        edges = slice(int(after.first[number]), int(after.first[number + 1]))
        if (after.event[edges] != EVENTS.index("grad_ready")).any() or after.lag[edges].any():
            return False
        variables = after.target[edges].tolist()
        if sum(model.variables[one].num_elements for one in variables) != operations.num_elements[number]:
            return False
        if len({model.variables[one].dtype for one in variables}) > 1:
            return False
        if not seen.isdisjoint(variables) or any(model.variables[one].sparse for one in variables):
            return False
        seen.update(variables)
    return len(seen) == len(model.variables)
