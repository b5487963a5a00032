"""`plan_id`: the identity of a plan, whichever of several alike nodes it calls by which name.

Nodes that the cluster declares alike may be exchanged for one another, so plans that differ in nothing but such an
exchange are one plan to whoever tries strategies. The hash is taken of the plan with its nodes renamed: those of each
class take the class's places in the order in which roles tell them apart. Operation by operation, nodes that have
another role than the others (the root of a server's star first, then members, then those that have no part) are
sorted out; nodes that no operation tells apart keep their order, for nothing depends on it.

A real renaming is applied before hashing, so plans with equal ids are the same but for names. The places of members in
a ring, a tree or an order of shards have no part in the identity: the order of the nodes in the file decides them,
and no strategy can.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from autosync import jsonio
from autosync.documents import to_plain
from autosync.plan.types import Edge, Groups, Operation, Plan, Transfer
from autosync.specs.cluster import ClusterSpec, symmetry_classes

ROOTED = ("reduce", "broadcast", "gather_v")

# In a cell, nodes that no operation has told apart so far.
_Cells = list[list[int]]

_ROOT, _MEMBER, _ABSENT = range(3)


def plan_id(plan: Plan, cluster: ClusterSpec) -> str:
    """The hash of a plan that was lowered for this cluster, the same for all names of alike nodes."""
    names = _names(plan, cluster)
    table = _GroupTable(names)
    operations = [_plain_operation(operation, table) for operation in plan.operations]
    return jsonio.content_hash(
        [
            plan.model,
            plan.cluster,
            plan.overlap,
            plan.backend,
            plan.num_workers,
            plan.clip_norm,
            [(str(part.name), part.axis, part.begin, part.end) for part in plan.parts],
            plan.regions,
            table.groups,
            operations,
            [(gate.kind, gate.variable, _in_order(gate.after)) for gate in plan.gates],
        ]
    )


def is_rooted(operation: Operation) -> bool:
    """Whether the first member of each group has a role of its own."""
    return isinstance(operation, Transfer) and operation.collective in ROOTED


def _names(plan: Plan, cluster: ClusterSpec) -> list[int]:
    """The new index of each rank: that of the same place on the node that its node is renamed to."""
    cells = [list(positions) for positions in symmetry_classes(cluster)]
    for groups, rooted in _distinct_groups(plan):
        if all(len(cell) == 1 for cell in cells):
            break
        cells = _refined(cells, plan, groups, rooted=rooted)
    class_of = {node: index for index, positions in enumerate(symmetry_classes(cluster)) for node in positions}
    free = [iter(positions) for positions in symmetry_classes(cluster)]
    renamed = {node: next(free[class_of[node]]) for cell in cells for node in cell}
    index_of = {(rank.node, rank.local): rank.index for rank in plan.ranks}
    return [index_of[renamed[rank.node], rank.local] for rank in plan.ranks]


def _distinct_groups(plan: Plan) -> Iterator[tuple[Groups, bool]]:
    """Groups, and whether they are rooted, in the order in which operations first have them."""
    seen: set[tuple[Groups, bool]] = set()
    seen_objects: set[tuple[int, bool]] = set()
    for operation in plan.operations:
        within = operation.within if isinstance(operation, Transfer) else ()
        for found in ((operation.groups, is_rooted(operation)), (within, False)):
            # Most operations share their groups: a look at the object saves hashing all its ranks.
            key = (id(found[0]), found[1])
            if key not in seen_objects:
                seen_objects.add(key)
                if found not in seen:
                    seen.add(found)
                    yield found


def _refined(cells: _Cells, plan: Plan, groups: Groups, *, rooted: bool) -> _Cells:
    """Split cells whose nodes have different roles in these groups."""
    roles: dict[int, list[tuple[int, int, int]]] = {}
    for group in groups:
        for position, index in enumerate(group):
            rank = plan.ranks[index]
            role = _ROOT if rooted and position == 0 else _MEMBER
            roles.setdefault(rank.node, []).append((role, rank.local, len(group)))
    for found in roles.values():
        found.sort()
    absent = [(_ABSENT, 0, 0)]
    refined: _Cells = []
    for cell in cells:
        by_role: dict[tuple[tuple[int, int, int], ...], list[int]] = {}
        for node in cell:
            by_role.setdefault(tuple(roles.get(node, absent)), []).append(node)
        refined.extend(by_role[role] for role in sorted(by_role))
    return refined


class _GroupTable:
    """Groups in their new names, each once, in the order in which they are asked for."""

    def __init__(self, names: Sequence[int]) -> None:
        self.groups: list[tuple[bool, list[list[int]]]] = []
        self._names = names
        self._by_value: dict[tuple[Groups, bool], int] = {}
        self._by_object: dict[tuple[int, bool], int] = {}

    def index(self, groups: Groups, *, rooted: bool) -> int:
        """The place in the table of groups that live as long as the table."""
        key = (id(groups), rooted)
        found = self._by_object.get(key)
        if found is None:
            found = self._by_object[key] = self._index(groups, rooted=rooted)
        return found

    def _index(self, groups: Groups, *, rooted: bool) -> int:
        found = self._by_value.get((groups, rooted))
        if found is None:
            found = self._by_value[groups, rooted] = len(self.groups)
            self.groups.append((rooted, sorted(self._renamed(group, rooted=rooted) for group in groups)))
        return found

    def _renamed(self, group: Iterable[int], *, rooted: bool) -> list[int]:
        members = [self._names[rank] for rank in group]
        return [members[0], *sorted(members[1:])] if rooted else sorted(members)


def _plain_operation(operation: Operation, table: _GroupTable) -> Sequence[Any]:
    """An operation with its groups by their place in the table."""
    after = _in_order(operation.after)
    groups = table.index(operation.groups, rooted=is_rooted(operation))
    if isinstance(operation, Transfer):
        within = table.index(operation.within, rooted=False)
        return (
            operation.collective,
            operation.algorithm,
            groups,
            operation.regions,
            operation.num_elements,
            operation.max_elements,
            operation.item_bytes,
            within,
            operation.lane,
            operation.priority,
            operation.message,
            after,
            operation.every,
        )
    return (
        operation.kind,
        operation.cost,
        groups,
        operation.sharded,
        operation.inputs,
        operation.outputs,
        operation.num_elements,
        operation.message,
        after,
        operation.every,
        None if operation.settings is None else to_plain(operation.settings),
    )


def _in_order(edges: tuple[Edge, ...]) -> Sequence[Edge]:
    """Edges in one order: that in which they are written may follow the order of ranks."""
    return edges if len(edges) < 2 else sorted(edges)
