"""Finds the variables of a plan that need not travel in a step in which no rank uses them. Free of torch.

A variable may stay if everything that its messages do belongs to one step and adds up gradients. Rows, averages of
parameters and data that come some steps late travel always. So do contents that only their receivers can add up
(rows, factors, codes) where the engine updates, because a late gradient must get there as well.

A message whose parts are only added up can travel without some of its parts. In any other message the place of an
element depends on all parts (shards, codecs), so it travels as a whole or not at all, and its variables form a group.

The runtime and the predictions of bytes and times go by this one rule.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
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

    def staying(self, unused: Collection[str]) -> frozenset[str]:
        """Return the variables that stay in a step in which no rank uses these."""
        kept = frozenset(self.names).intersection(unused)
        return kept - self.closed(set(self.names) - kept)


def may_stay(plan: Plan) -> MayStay:
    """Return the variables of a plan that may stay.

    There are none if the plan needs servers, runs on NCCL or has stages, and none if batches weigh differently: late
    gradients are added without the weight of a rank's batch.
    """
    nothing = MayStay(names=(), engines=frozenset(), groups=())
    if plan.backend != "gloo" or plan.num_workers == 1 or plan.needed_servers or plan.stages:
        return nothing
    if plan.shares or plan.weighs or follows_users_updates(plan):
        return nothing
    engines, variables = engine_updates(plan).variables, _variables(plan)
    operations: list[list[Transfer | Local]] = [[] for _ in plan.messages]
    for operation in plan.operations:
        if operation.message >= 0:
            operations[operation.message].append(operation)
    always: set[str] = set()
    whole: list[frozenset[str]] = []
    late = lags(plan)
    for message, (found, held) in enumerate(zip(operations, variables, strict=True)):
        if late[message] or any(_must_travel(plan, one, engines) for one in found):
            always |= held
        if not engines.isdisjoint(held) or not all(_travels_in_parts(plan, one) for one in found):
            whole.append(held)
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


def _variables(plan: Plan) -> list[frozenset[str]]:
    """Return the variables of each message."""
    variable_of = {str(part.name): part.variable.name for part in plan.parts}
    return [frozenset(variable_of[str(name)] for name in message) for message in plan.messages]


def _regions(plan: Plan, operation: Transfer | Local) -> list[Region]:
    indices = operation.regions if isinstance(operation, Transfer) else (*operation.inputs, *operation.outputs)
    return [plan.regions[index] for index in indices]


def _must_travel(plan: Plan, operation: Transfer | Local, engines: frozenset[str]) -> bool:
    """Whether an operation, and so its message, must take place even in a step that does not use its variables."""
    if operation.every > 1:
        return True
    regions = _regions(plan, operation)
    is_update = isinstance(operation, Local) and operation.kind == "update"
    names = {plan.parts[region.part].variable.name for region in regions if region.part >= 0}
    allowed = _USERS_KINDS if engines.isdisjoint(names) else _ENGINES_KINDS
    for region in regions:
        if region.kind not in allowed and not (is_update and region.kind == "param"):
            return True
        if region.kind == "encoded" and region.dtype == "uint8" and allowed is _ENGINES_KINDS:
            return True
    return False


def _travels_in_parts(plan: Plan, operation: Transfer | Local) -> bool:
    """Whether an operation can take place without some parts of its message."""
    if isinstance(operation, Transfer):
        kinds = {plan.regions[index].kind for index in operation.regions}
        return operation.collective in _SUMS and not operation.within and kinds == {"grad"}
    if operation.kind == "average":
        return not operation.sharded
    return operation.kind in ("norm", "update")


def _joined(sets: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """Join sets that share members."""
    found: list[frozenset[str]] = []
    for one in sets:
        touching = [other for other in found if not other.isdisjoint(one)]
        found = [other for other in found if other.isdisjoint(one)]
        found.append(frozenset(one.union(*touching)))
    return found
