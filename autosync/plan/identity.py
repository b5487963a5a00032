"""Computes `plan_id`, the identity of a plan, which stays the same when equal nodes of the cluster swap their names.

Plans that differ only in a swap of nodes that the cluster declares equal need be tried only once. So the nodes are
renamed before the plan is hashed: the nodes of each class of equal nodes are sorted by their roles in the plan and take
the places of the class in this order. Operation by operation, nodes of a class are separated by role: roots come first,
then other members, then nodes that take no part. Nodes with equal roles in all operations keep their order, because
nothing depends on it.

The hashed plan is the plan with its nodes renamed, so plans with equal ids are the same but for names. The places of
members in a ring, in a tree or in the order of shards are not part of the identity: the order of nodes in the cluster
file decides them, and no strategy can change it. The same holds for `levels`. Other trees are written out in the
strategy; in a plan with such trees, nodes keep their names.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from autosync import jsonio
from autosync.documents import to_plain
from autosync.plan.types import Algorithm, Edge, Groups, Local, Operation, Plan, Region, Transfer
from autosync.specs.cluster import ClusterSpec, symmetry_classes
from autosync.strategy.shapes.levels import levels, num_level_shares
from autosync.strategy.shapes.trees import MAX_SHARES, TreeShape, by_root

ROOTED = ("reduce", "broadcast", "gather_v", "send")

# Each cell holds equal nodes that have had the same roles in all operations so far.
_Cells = list[list[int]]

_ROOT, _MEMBER, _ABSENT = range(3)


def plan_id(plan: Plan, cluster: ClusterSpec) -> str:
    """Return the hash of a plan that was lowered for this cluster; swapping equal nodes does not change it."""
    names = _names(plan, cluster)
    table = _GroupTable(names)
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
            *_division(plan, names),
        ]
    )


def _division(plan: Plan, names: Sequence[int]) -> list[Any]:
    """Return the shares and the stages of the renamed ranks, and whether batches are weighed; nothing if undivided."""
    stages = [[stage.before, [names[rank] for rank in stage.ranks]] for stage in plan.stages]
    if stages:
        words = [word for word, is_so in (("recompute", plan.recompute), ("stashes", plan.stashes)) if is_so]
        return [stages, plan.microbatches, *words]
    if not plan.shares and not plan.weighs:
        return []
    return [[share for _, share in sorted(zip(names, plan.shares, strict=False))], plan.weighs]


def is_rooted(operation: Operation) -> bool:
    """Whether the first member of each group has a role of its own."""
    return isinstance(operation, Transfer) and operation.collective in ROOTED


def _names(plan: Plan, cluster: ClusterSpec) -> list[int]:
    """Return the new index of each rank: the index of the same place on the node that its node is renamed to."""
    if _has_written_trees(plan, cluster):
        return [rank.index for rank in plan.ranks]
    cells = [list(positions) for positions in symmetry_classes(cluster)]
    if plan.shares:
        cells = _by_share(cells, plan)
    is_told_apart = all(len(cell) == 1 for cell in cells)
    for groups, rooted in () if is_told_apart else _distinct_groups(plan):
        cells = _refined(cells, plan, groups, rooted=rooted)
    class_of = {node: index for index, positions in enumerate(symmetry_classes(cluster)) for node in positions}
    free = [iter(positions) for positions in symmetry_classes(cluster)]
    renamed = {node: next(free[class_of[node]]) for cell in cells for node in cell}
    index_of = {(rank.node, rank.local): rank.index for rank in plan.ranks}
    return [index_of[renamed[rank.node], rank.local] for rank in plan.ranks]


def _by_share(cells: _Cells, plan: Plan) -> _Cells:
    """Split the cells whose nodes compute different shares of the batch."""
    shares: dict[int, list[int]] = {}
    for rank, share in zip(plan.ranks, plan.shares, strict=False):
        shares.setdefault(rank.node, []).append(share)
    refined: _Cells = []
    for cell in cells:
        by_share: dict[tuple[int, ...], list[int]] = {}
        for node in cell:
            by_share.setdefault(tuple(shares.get(node, ())), []).append(node)
        refined.extend(by_share[share] for share in sorted(by_share))
    return refined


def _has_written_trees(plan: Plan, cluster: ClusterSpec) -> bool:
    # Most transfers share their algorithms: comparing objects avoids comparing all trees each time.
    found = {id(one.algorithm): one.algorithm for one in plan.operations if isinstance(one, Transfer)}
    return any(isinstance(one, TreeShape) and not _is_levels(one, cluster) for one in found.values())


def _is_levels(shape: TreeShape, cluster: ClusterSpec) -> bool:
    """Whether a shape is the cluster's levels, for an all-reduce or for shards."""
    if num_level_shares(cluster) > MAX_SHARES:
        return False
    shares = levels(cluster).shares
    return shape.shares in (shares, by_root(shares))


def _distinct_groups(plan: Plan) -> Iterable[tuple[Groups, bool]]:
    """Return the different groups in order of first appearance, each with whether it is rooted."""
    # Most operations share their groups: comparing objects avoids hashing all their ranks.
    found = {(id(one.groups), is_rooted(one)): one.groups for one in plan.operations}
    found |= {(id(one.within), False): one.within for one in plan.operations if isinstance(one, Transfer)}
    return dict.fromkeys([(groups, rooted) for (_, rooted), groups in found.items()])


def _refined(cells: _Cells, plan: Plan, groups: Groups, *, rooted: bool) -> _Cells:
    """Split the cells whose nodes have different roles in these groups."""
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
    """A table of groups with renamed ranks; each is listed once, in the order of first use."""

    def __init__(self, names: Sequence[int]) -> None:
        self.groups: list[tuple[bool | str | list[list[int]], ...]] = []
        self._names = names
        self._by_value: dict[tuple[Groups, bool], int] = {}

    def column(self, groups: Sequence[Groups], rooted: Sequence[bool] = ()) -> list[int]:
        """Return the place of each of these groups in the table; `rooted` says which are rooted (default: none).

        Most are the same objects, which makes this fast.
        """
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
            renamed = sorted(self._renamed(group, rooted=rooted) for group in groups)
            self.groups.append((rooted, renamed, *(() if rooted or _are_ascending(groups) else ("nearest first",))))
        return found

    def _renamed(self, group: Iterable[int], *, rooted: bool) -> list[int]:
        members = [self._names[rank] for rank in group]
        return [members[0], *sorted(members[1:])] if rooted else sorted(members)


def _are_ascending(groups: Groups) -> bool:
    """Whether members are in the order of ranks.

    Halving-doubling takes them in another one where some are nearer than others. The cluster decides which, so the
    order itself is not hashed; plans in which nearest ranks did not meet first have other ids.
    """
    return all(list(group) == sorted(group) for group in groups)


def _columns(rows: Sequence[tuple[Any, ...]], names: Sequence[str]) -> dict[str, list[Any]]:
    """Turn rows into columns by name: a few long lists are written as JSON much faster than many short ones."""
    return {name: list(map(itemgetter(place), rows)) for place, name in enumerate(names)}


def _transfer_columns(transfers: Sequence[Transfer], table: _GroupTable) -> dict[str, list[Any]]:
    """Return the columns of transfers, with places in the table instead of groups."""
    columns = _columns(transfers, Transfer._fields)
    columns["groups"] = table.column(columns["groups"], [one.collective in ROOTED for one in transfers])
    columns["within"] = table.column(columns["within"])
    columns["algorithm"] = _algorithm_column(columns["algorithm"])
    columns["after"] = _edge_columns(columns["after"])
    return columns


def _algorithm_column(algorithms: Sequence[Algorithm]) -> list[str]:
    """Return the names of algorithms, with a hash of its trees instead of a shape's name."""
    # Transfers share their shapes: comparing objects avoids hashing all trees each time.
    shapes = {id(one): one for one in algorithms if isinstance(one, TreeShape)}
    names = {key: jsonio.content_hash(to_plain(shape.shares)) for key, shape in shapes.items()}
    return [names[id(one)] if isinstance(one, TreeShape) else one for one in algorithms]


def _local_columns(locals_: Sequence[Local], table: _GroupTable) -> dict[str, list[Any]]:
    """Return the columns of local operations, with places in the table instead of groups.

    Different settings are listed once, and operations refer to them by place.
    """
    columns = _columns(locals_, Local._fields)
    if not any(columns["weights"]):
        # Plans with equal shards keep the ids that they had before shards could have weights.
        del columns["weights"]
    columns["groups"] = table.column(columns["groups"])
    columns["after"] = _edge_columns(columns["after"])
    places = {settings: place for place, settings in enumerate(dict.fromkeys(columns["settings"]))}
    columns["settings"] = [[to_plain(settings) for settings in places], [places[one] for one in columns["settings"]]]
    return columns


def _edge_columns(waits: Sequence[tuple[Edge, ...]]) -> list[Any]:
    """Return the number of edges of each wait, then the columns of all edges.

    The edges of each wait are sorted, because the order in which they are written may depend on the order of ranks.
    """
    in_order = [edges if len(edges) < 2 else sorted(edges) for edges in waits]
    return [list(map(len, in_order)), _columns(list(itertools.chain.from_iterable(in_order)), Edge._fields)]
