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

import itertools
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from autosync import jsonio
from autosync.documents import to_plain
from autosync.plan.types import Edge, Groups, Local, Operation, Plan, Region, Transfer
from autosync.specs.cluster import ClusterSpec, symmetry_classes

ROOTED = ("reduce", "broadcast", "gather_v")

# In a cell, nodes that no operation has told apart so far.
_Cells = list[list[int]]

_ROOT, _MEMBER, _ABSENT = range(3)


def plan_id(plan: Plan, cluster: ClusterSpec) -> str:
    """The hash of a plan that was lowered for this cluster, the same for all names of alike nodes."""
    table = _GroupTable(_names(plan, cluster))
    return jsonio.content_hash(
        [
            plan.model,
            plan.cluster,
            plan.overlap,
            plan.backend,
            plan.num_workers,
            plan.clip_norm,
            [(str(part.name), part.axis, part.begin, part.end) for part in plan.parts],
            _columns(plan.regions, Region._fields),
            [isinstance(operation, Transfer) for operation in plan.operations],
            _transfer_columns([one for one in plan.operations if isinstance(one, Transfer)], table),
            _local_columns([one for one in plan.operations if isinstance(one, Local)], table),
            table.groups,
            [(gate.kind, gate.variable) for gate in plan.gates],
            _edge_columns([gate.after for gate in plan.gates]),
        ]
    )


def is_rooted(operation: Operation) -> bool:
    """Whether the first member of each group has a role of its own."""
    return isinstance(operation, Transfer) and operation.collective in ROOTED


def _names(plan: Plan, cluster: ClusterSpec) -> list[int]:
    """The new index of each rank: that of the same place on the node that its node is renamed to."""
    cells = [list(positions) for positions in symmetry_classes(cluster)]
    is_told_apart = all(len(cell) == 1 for cell in cells)
    for groups, rooted in () if is_told_apart else _distinct_groups(plan):
        cells = _refined(cells, plan, groups, rooted=rooted)
    class_of = {node: index for index, positions in enumerate(symmetry_classes(cluster)) for node in positions}
    free = [iter(positions) for positions in symmetry_classes(cluster)]
    renamed = {node: next(free[class_of[node]]) for cell in cells for node in cell}
    index_of = {(rank.node, rank.local): rank.index for rank in plan.ranks}
    return [index_of[renamed[rank.node], rank.local] for rank in plan.ranks]


def _distinct_groups(plan: Plan) -> Iterable[tuple[Groups, bool]]:
    """Groups, and whether they are rooted, in the order in which operations first have them."""
    # Most operations share their groups: a look at the object saves hashing all its ranks.
    found = {(id(one.groups), is_rooted(one)): one.groups for one in plan.operations}
    found |= {(id(one.within), False): one.within for one in plan.operations if isinstance(one, Transfer)}
    return dict.fromkeys([(groups, rooted) for (_, rooted), groups in found.items()])


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

    def column(self, groups: Sequence[Groups], rooted: Sequence[bool] = ()) -> list[int]:
        """The places in the table of many groups, most of which are the same objects; none is rooted unless told so."""
        by_object: dict[tuple[int, bool], int] = {}
        places: list[int] = []
        for one, is_rooted_one in zip(groups, rooted or [False] * len(groups), strict=True):
            key = (id(one), is_rooted_one)
            place = by_object.get(key)
            if place is None:
                place = by_object[key] = self._place(one, rooted=is_rooted_one)
            places.append(place)
        return places

    def _place(self, groups: Groups, *, rooted: bool) -> int:
        found = self._by_value.get((groups, rooted))
        if found is None:
            found = self._by_value[groups, rooted] = len(self.groups)
            self.groups.append((rooted, sorted(self._renamed(group, rooted=rooted) for group in groups)))
        return found

    def _renamed(self, group: Iterable[int], *, rooted: bool) -> list[int]:
        members = [self._names[rank] for rank in group]
        return [members[0], *sorted(members[1:])] if rooted else sorted(members)


def _columns(rows: Sequence[tuple[Any, ...]], names: Sequence[str]) -> dict[str, list[Any]]:
    """Rows by the names of their columns: JSON of a few long lists takes a fraction of the time of many short ones."""
    return {name: list(map(itemgetter(place), rows)) for place, name in enumerate(names)}


def _transfer_columns(transfers: Sequence[Transfer], table: _GroupTable) -> dict[str, list[Any]]:
    """Transfers with their groups by their places in the table."""
    columns = _columns(transfers, Transfer._fields)
    columns["groups"] = table.column(columns["groups"], [one.collective in ROOTED for one in transfers])
    columns["within"] = table.column(columns["within"])
    columns["after"] = _edge_columns(columns["after"])
    return columns


def _local_columns(locals_: Sequence[Local], table: _GroupTable) -> dict[str, list[Any]]:
    """Local operations with their groups by their places in the table, their settings by those among all different."""
    columns = _columns(locals_, Local._fields)
    columns["groups"] = table.column(columns["groups"])
    columns["after"] = _edge_columns(columns["after"])
    places = {settings: place for place, settings in enumerate(dict.fromkeys(columns["settings"]))}
    columns["settings"] = [[to_plain(settings) for settings in places], [places[one] for one in columns["settings"]]]
    return columns


def _edge_columns(waits: Sequence[tuple[Edge, ...]]) -> list[Any]:
    """How many edges each has to wait for, then the columns of all of them.

    The edges of one wait are put in one order: that in which they are written may follow the order of ranks.
    """
    in_order = [edges if len(edges) < 2 else sorted(edges) for edges in waits]
    return [list(map(len, in_order)), _columns(list(itertools.chain.from_iterable(in_order)), Edge._fields)]
