"""The moves of each shape of transfer as columns, computed once for many plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from autosync.plan.expansion import Move, expand, num_chunks, ring_moves
from autosync.plan.outline import is_ring
from autosync.plan.tables import Shape
from autosync.plan.types import Algorithm, Collective
from autosync.simulators.shared.arrays import Flags, Floats, Integers
from autosync.simulators.shared.size_exchange import moves_of_sizes
from autosync.simulators.timeline.one_node import (
    HERE,
    EqualNodes,
    hop_of_native_ring,
    is_same_on_nodes,
    members_on_node,
    moves_of_node,
    senders_to_node,
)
from autosync.strategy.shapes.trees import TreeShape

PIECES, NATIVE_RING, IN_WAVES = range(3)
"""The kinds of templates: moves that the engine cuts into pieces, gloo's own all-reduce, and moves over trees."""


class MoveTables(NamedTuple):
    """The shapes of transfers as columns, computed once for many plans.

    For each shape: whether it has messages (local work has none), into how many chunks an outer split has cut its
    buffer, and its groups, which are numbered from `first_group[shape]` on. For each group g: its template, and its
    ranks `ranks[group_first[g] : group_first[g + 1]]`, which represent `group_size[g]` ranks. Nodes may have different
    numbers of ranks, so groups of one shape may have different templates.

    A template describes a collective among some number of members: its moves in the order of rounds, with the channel
    of each. For each member m, from `first_member[template]` on, `arriving[first_arriving[m] : ...]` has the moves that
    arrive there, and `leaving` its moves to other members. If one node represents all, a move that arrives there is a
    send of another node at the same time: `came_first` and `came_last` are its chunks, and otherwise the chunks that
    are sent.
    `channel_hop` then has the node at the other end of each channel (see `one_node`).

    `local_share` has for each of `ranks` its part of local work that is sharded.

    In rounds below 0, members exchange the sizes of contents. Transfers of numbers skip them. `widest` is the length of
    the longest share of trees in chunks.
    """

    has_messages: Flags
    outer: Integers
    first_group: Integers
    template: Integers
    group_first: Integers
    group_size: Integers
    ranks: Integers
    local_share: Floats
    kind: Integers
    num_chunks: Integers
    widest: Integers
    is_gather: Flags
    is_whole: Flags
    first_channel: Integers
    channel_source: Integers
    channel_destination: Integers
    channel_hop: Integers
    first_move: Integers
    move_round: Integers
    move_first: Integers
    move_last: Integers
    came_first: Integers
    came_last: Integers
    move_adds: Flags
    move_channel: Integers
    first_member: Integers
    first_arriving: Integers
    arriving: Integers
    first_leaving: Integers
    leaving: Integers


class _MovePattern(NamedTuple):
    kind: int
    num_members: int
    num_chunks: int
    widest: int
    is_gather: bool
    is_whole: bool
    moves: tuple[Move, ...]
    came: tuple[Move, ...]
    hops: tuple[int, ...] = ()


def move_tables_of(shapes: Sequence[Shape], *, nodes: EqualNodes | None = None) -> MoveTables:
    """Return the tables of these shapes, in their order.

    With `nodes`, all nodes do the same and the first represents all. Shapes in which they do not have no messages.
    """
    templates: dict[_MovePattern, int] = {}
    template, has_messages = list[int](), list[bool]()
    played = [_played_groups(shape, nodes) for shape in shapes]
    for shape, groups in zip(shapes, played, strict=True):
        has_messages.append(shape.collective is not None and (nodes is None or is_same_on_nodes(shape, nodes)))
        for group in groups:
            if not has_messages[-1]:
                template.append(-1)
                continue
            found = _template(shape, group, nodes)
            template.append(templates.setdefault(found, len(templates)))
    flat = [group for groups in played for group in groups]
    ranks = flat if nodes is None else [members_on_node(group, nodes) for group in flat]
    columns = _columns(list(templates))
    return MoveTables(
        has_messages=np.array(has_messages, dtype=np.bool_),
        outer=_integers([len(shape.within[0]) if shape.within else 1 for shape in shapes]),
        first_group=_ends([len(groups) for groups in played]),
        template=_integers(template),
        group_first=_ends([len(some) for some in ranks]),
        group_size=_integers([len(group) for group in flat]),
        ranks=_integers([rank for some in ranks for rank in some]),
        local_share=_local_shares(shapes, played, nodes),
        **columns,
    )


def _played_groups(shape: Shape, nodes: EqualNodes | None) -> list[tuple[int, ...]]:
    """Return the groups of which some ranks are simulated."""
    if nodes is None:
        return list(shape.groups)
    return [group for group in shape.groups if members_on_node(group, nodes)]


def _local_shares(
    shapes: Sequence[Shape], played: Sequence[Sequence[tuple[int, ...]]], nodes: EqualNodes | None
) -> Floats:
    """Return the part of sharded local work that each simulated rank of each group does."""
    found = list[float]()
    for shape, groups in zip(shapes, played, strict=True):
        for group in groups:
            weights = shape.weights or (1,) * len(group)
            shares = zip(group, weights, strict=True)
            found += [weight / sum(weights) for rank, weight in shares if nodes is None or rank < nodes.per_node]
    return np.array(found)


def _template(shape: Shape, group: Sequence[int], nodes: EqualNodes | None) -> _MovePattern:
    """Return the template of a group; with `nodes`, that of its members on the first node."""
    collective, algorithm, size = shape.collective, shape.algorithm, len(group)
    assert collective is not None
    assert algorithm is not None
    chunks = num_chunks(collective, size, algorithm) if size > 1 else 1
    is_tree = isinstance(algorithm, TreeShape) and size > 1
    is_gloos_ring = (collective, algorithm) == ("all_reduce", "native") and size > 1
    moves: tuple[Move, ...]
    if is_gloos_ring:
        moves = tuple(Move(0, member, (member + 1) % size, 0, 1, adds=True) for member in range(size))
    else:
        moves = (*moves_of_sizes(collective, algorithm, size), *_data_moves(collective, algorithm, group, nodes))
    found = _MovePattern(
        kind=NATIVE_RING if is_gloos_ring else IN_WAVES if is_tree else PIECES,
        num_members=size,
        num_chunks=chunks,
        widest=algorithm.widest if isinstance(algorithm, TreeShape) else 1,
        is_gather=collective in ("gather_v", "all_gather_v"),
        # gloo's own broadcasts and reductions move whole buffers.
        is_whole=algorithm == "native" and collective in ("reduce", "broadcast"),
        moves=moves,
        came=moves,
    )
    return found if nodes is None else _of_node(found, group, nodes)


def _data_moves(
    collective: Collective, algorithm: Algorithm, group: Sequence[int], nodes: EqualNodes | None
) -> Sequence[Move]:
    """Return the moves of a group's data in the order of rounds; with `nodes`, at least those of the first node."""
    if len(group) == 1:
        return ()
    if nodes is not None and is_ring(collective, algorithm):
        return ring_moves(collective, len(group), senders_to_node(group, nodes))
    return sorted(expand(collective, algorithm, len(group)), key=lambda move: move.round)


def _of_node(template: _MovePattern, group: Sequence[int], nodes: EqualNodes) -> _MovePattern:
    """Return the first node's part of a template in which all nodes do the same."""
    count = len(members_on_node(group, nodes))
    if template.kind == NATIVE_RING:
        # Each member has one channel; what it sends follows from the number of all members.
        moves = tuple(move._replace(destination=move.destination % count) for move in template.moves[:count])
        hops = [hop_of_native_ring(member, group, nodes) for member in range(count)]
        return template._replace(num_members=count, moves=moves, came=moves, hops=tuple(hops))
    found = list(moves_of_node(template.moves, group, nodes))
    return template._replace(
        num_members=count,
        moves=tuple([one.move for one in found]),
        came=tuple([one.came for one in found]),
        hops=tuple([one.hop for one in found]),
    )


def _columns(templates: Sequence[_MovePattern]) -> dict[str, Any]:
    sources, destinations, channels, hops = list[int](), list[int](), list[int](), list[int]()
    num_channels, arriving, leaving = list[int](), list[list[int]](), list[list[int]]()
    flat, came = list[Move](), list[Move]()
    for template in templates:
        moves = template.moves
        known: dict[tuple[int, int, int], int] = {}
        members: list[tuple[list[int], list[int]]] = [([], []) for _ in range(template.num_members)]
        ways = template.hops or (HERE,) * len(moves)
        for number, (move, hop) in enumerate(zip(moves, ways, strict=True), start=len(flat)):
            channels.append(known.setdefault((move.source, move.destination, hop), len(known)))
            members[move.destination][0].append(number)
            members[move.source][1].append(number)
        flat += moves
        came += template.came
        num_channels.append(len(known))
        sources += [source for source, _, _ in known]
        destinations += [destination for _, destination, _ in known]
        hops += [hop for _, _, hop in known]
        for ours, theirs in members:
            # Over trees, several shares have moves in a round, and both ends have them in the order of shares.
            key = _by_share if template.kind == IN_WAVES else _by_source
            arriving.append(sorted(ours, key=lambda number: key(flat[number])))
            leaving.append(theirs)
    return {
        "kind": _integers([one.kind for one in templates]),
        "num_chunks": _integers([one.num_chunks for one in templates]),
        "widest": _integers([one.widest for one in templates]),
        "is_gather": np.array([one.is_gather for one in templates], dtype=np.bool_),
        "is_whole": np.array([one.is_whole for one in templates], dtype=np.bool_),
        "first_channel": _ends(num_channels),
        "channel_source": _integers(sources),
        "channel_destination": _integers(destinations),
        "channel_hop": _integers(hops),
        "first_move": _ends([len(one.moves) for one in templates]),
        "move_round": _integers([move.round for move in flat]),
        "move_first": _integers([move.first for move in flat]),
        "move_last": _integers([move.last for move in flat]),
        "came_first": _integers([move.first for move in came]),
        "came_last": _integers([move.last for move in came]),
        "move_adds": np.array([move.adds for move in flat], dtype=np.bool_),
        "move_channel": _integers(channels),
        "first_member": _ends([one.num_members for one in templates]),
        "first_arriving": _ends([len(one) for one in arriving]),
        "arriving": _integers([number for one in arriving for number in one]),
        "first_leaving": _ends([len(one) for one in leaving]),
        "leaving": _integers([number for one in leaving for number in one]),
    }


def _by_source(move: Move) -> tuple[int, ...]:
    return move.round, move.source


def _by_share(move: Move) -> tuple[int, ...]:
    return move.round, move.first, move.source


def _ends(lengths: Sequence[int]) -> Integers:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)


def _integers(values: Sequence[int]) -> Integers:
    return np.array(values, dtype=np.int64)
