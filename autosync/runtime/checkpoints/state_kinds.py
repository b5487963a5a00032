"""The kinds of state that a plan keeps of each variable, to tell whether another plan can resume. Free of torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from autosync.plan.types import Local, Operation, Plan, StagePass, Transfer
from autosync.runtime.local.engine_updates import is_by_every_worker
from autosync.runtime.memory.layout import lags
from autosync.strategy.codecs import Codec, PowerSGD
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer


def natures(plan: Plan) -> dict[str, list[str]]:
    """Return for each variable the kinds of state that outlive a step, besides parameters and optimizer state."""
    found: dict[str, set[str]] = {part.variable.name: set() for part in plan.parts}
    late = lags(plan)
    for operation in plan.operations:
        for name in variables_of(plan, operation):
            found[name] |= _nature(plan, operation, late[operation.message])
    return {name: sorted(words) for name, words in found.items()}


def first_difference(theirs: Mapping[str, list[str]], ours: Mapping[str, list[str]]) -> str | None:
    """Describe the first variable of which two plans keep different state; None if there is no such variable."""
    for name in sorted({*theirs, *ours}):
        saved, here = set(theirs.get(name, ())), set(ours.get(name, ()))
        if saved != here:
            return f"{name} was trained with {_told(saved)}; here it is trained with {_told(here)}"
    return None


def own_variables(plan: Plan) -> frozenset[str]:
    """Return the variables that each worker updates with its own gradients, because they are periodically averaged."""
    return frozenset(
        name for operation in plan.operations if _is_periodic(plan, operation) for name in variables_of(plan, operation)
    )


def variables_kept_apart(plan: Plan, updates: frozenset[int]) -> frozenset[str]:
    """Return the variables whose optimizer state is complete on no worker: they are updated elsewhere or in shards.

    `updates` are the positions of the engine's update operations.
    """
    return frozenset(
        name
        for index in updates
        if not is_by_every_worker(plan, plan.operations[index])
        for name in variables_of(plan, plan.operations[index])
    )


def variables_of(plan: Plan, operation: Operation) -> set[str]:
    """Return the variables that an operation writes or moves, completely or in part."""
    regions = operation.outputs if isinstance(operation, Local) else operation.regions
    return {plan.parts[plan.regions[index].part].variable.name for index in regions if plan.regions[index].part >= 0}


def _is_periodic(plan: Plan, operation: Operation) -> bool:
    """Whether an operation sums parameters that each worker has updated for itself."""
    return (
        isinstance(operation, Transfer)
        and operation.collective == "all_reduce"
        and plan.regions[operation.regions[0]].kind == "param"
    )


def _nature(plan: Plan, operation: Operation, late: int) -> set[str]:
    if isinstance(operation, Transfer):
        return {"periodic averages"} if _is_periodic(plan, operation) else set()
    match operation.kind:
        case "encode":
            assert operation.settings is not None, "encoding has a codec"
            assert not isinstance(operation.settings, OuterOptimizer | StagePass), "encoding has a codec"
            return _codec(operation.settings)
        case "take":
            return {f"staleness {late}"}
        case "write_rows" if late:
            return {f"staleness {late} of rows"}
        case "outer":
            return {"an outer optimizer"}
    return set()


def _codec(codec: Codec) -> set[str]:
    """Describe a codec with all of its settings; return an empty set for a codec that keeps no state."""
    settings = dataclasses.asdict(codec)
    kind = settings.pop("kind")
    if not (codec.error_feedback or settings.get("momentum") or isinstance(codec, PowerSGD)):
        return set()
    told = ", ".join(f"{key} {value}" for key, value in sorted(settings.items()))
    return {f"codec {kind} ({told})"}


def _told(words: set[str]) -> str:
    return " and ".join(sorted(words)) or "nothing of the kind"
