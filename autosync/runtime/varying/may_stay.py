"""Finds the variables of a plan that need not travel in a step in which no rank uses them. Free of torch.

A variable may stay if everything that its messages do belongs to one step and adds up gradients. Rows, averages of
parameters and data that come some steps late travel always. So do contents that only their receivers can add up
(rows, factors, codes) where the engine updates, because a late gradient must get there as well.

A message whose parts are only added up can travel without some of its parts. In any other message the place of an
element depends on all parts (shards, codecs), so it travels as a whole or not at all, and its variables form a group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autosync.plan.types import Local, Plan, Region, Transfer
from autosync.runtime.local.engine_updates import engine_updates, follows_users_updates
from autosync.runtime.memory.layout import lags

_USERS_KINDS = frozenset({"grad", "encoded", "left", "right", "factors", "norm"})
_ENGINES_KINDS = frozenset({"grad", "param", "encoded", "norm"})
_SUMS = frozenset({"all_reduce", "reduce", "broadcast"})


@dataclass(frozen=True, slots=True, kw_only=True)
class MayStay:
    """The variables that may stay, in the plan's order, and those of them that the engine updates.

    Variables in one of `groups` travel together or not at all.
    """

    names: tuple[str, ...]
    engines: frozenset[str]
    groups: tuple[frozenset[str], ...]

    def closed(self, names: Iterable[str]) -> set[str]:
        """Return variables with all others that must travel with them."""
        found = set(names)
        for group in self.groups:
            if not found.isdisjoint(group):
                found |= group
        return found


def may_stay(plan: Plan) -> MayStay:
    """Return the variables of a plan that may stay; none if the plan needs servers or runs on NCCL."""
    engines = engine_updates(plan).variables
    if plan.backend != "gloo" or plan.num_workers == 1 or plan.needed_servers or follows_users_updates(plan):
        return MayStay(names=(), engines=frozenset(), groups=())
    variables = [_variables(plan, message) for message in range(len(plan.messages))]
    always = {name for message, names in enumerate(variables) if _must_travel(plan, message, engines) for name in names}
    whole = [names for message, names in enumerate(variables) if not _travels_in_parts(plan, message, engines)]
    groups = _joined(whole)
    for group in groups:
        if not always.isdisjoint(group):
            always |= group
    names = tuple(dict.fromkeys(part.variable.name for part in plan.parts if part.variable.name not in always))
    return MayStay(
        names=names,
        engines=engines.intersection(names),
        groups=tuple(group for group in groups if len(group) > 1 and always.isdisjoint(group)),
    )


def _variables(plan: Plan, message: int) -> frozenset[str]:
    names = {str(name) for name in plan.messages[message]}
    return frozenset(part.variable.name for part in plan.parts if str(part.name) in names)


def _regions(plan: Plan, operation: Transfer | Local) -> list[Region]:
    indices = operation.regions if isinstance(operation, Transfer) else (*operation.inputs, *operation.outputs)
    return [plan.regions[index] for index in indices]


def _must_travel(plan: Plan, message: int, engines: frozenset[str]) -> bool:
    """Whether a message must travel in every step, whatever the step uses."""
    if lags(plan)[message]:
        return True
    for operation in plan.operations:
        if operation.message != message:
            continue
        regions = _regions(plan, operation)
        if operation.every > 1:
            return True
        is_update = isinstance(operation, Local) and operation.kind == "update"
        names = {plan.parts[region.part].variable.name for region in regions if region.part >= 0}
        allowed = _USERS_KINDS if engines.isdisjoint(names) else _ENGINES_KINDS
        for region in regions:
            if region.kind not in allowed and not (is_update and region.kind == "param"):
                return True
            if region.kind == "encoded" and region.dtype == "uint8" and allowed is _ENGINES_KINDS:
                return True
    return False


def _travels_in_parts(plan: Plan, message: int, engines: frozenset[str]) -> bool:
    """Whether a message can travel without some of its parts."""
    for operation in plan.operations:
        if operation.message != message:
            continue
        if isinstance(operation, Transfer):
            kinds = {plan.regions[index].kind for index in operation.regions}
            if operation.collective not in _SUMS or operation.within or kinds != {"grad"}:
                return False
        elif operation.kind == "average":
            if operation.sharded:
                return False
        elif operation.kind not in ("norm", "update"):
            return False
    return engines.isdisjoint(_variables(plan, message))


def _joined(sets: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """Join sets that share members."""
    found: list[frozenset[str]] = []
    for one in sets:
        touching = [other for other in found if not other.isdisjoint(one)]
        found = [other for other in found if other.isdisjoint(one)]
        found.append(frozenset(one.union(*touching)))
    return found
