"""The moves of each shape of transfer as columns, computed once for many plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from autosync.plan.expansion import Move, expand, num_chunks
from autosync.plan.tables import Shape
from autosync.simulators.shared.arrays import Flags, Floats, Integers
from autosync.simulators.shared.size_exchange import moves_of_sizes
from autosync.strategy.shapes.trees import TreeShape

PIECES, NATIVE_RING, IN_WAVES = range(3)
"""The kinds of templates: moves that the engine cuts into pieces, gloo's own all-reduce, and moves over trees."""

_ROOTED = ("reduce", "broadcast", "gather_v")


class MoveTables(NamedTuple):
    """The shapes of transfers as columns, computed once for many plans.

    For each shape: whether it has messages (local work has none), into how many chunks an outer split has cut its
    buffer, and its groups, which are numbered from `first_group[shape]` on. For each group g: its template, and its
    ranks `ranks[group_first[g] : group_first[g + 1]]`, which represent `group_size[g]` ranks. Nodes may have different
    numbers of ranks, so groups of one shape may have different templates.

    A template describes a collective among some number of members: its moves in the order of rounds, with the channel
    of each. For each member m, from `first_member[template]` on, `arriving[first_arriving[m] : ...]` has the moves that
    arrive there, and `leaving` those that leave. If one member represents all, a move that arrives there is a send of
    another member at the same time: `came_first` and `came_last` are its chunks, and otherwise the chunks that are
    sent.

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


def move_tables_of(shapes: Sequence[Shape], *, alike: bool = False) -> MoveTables:
    """Return the tables of these shapes, in their order.

    With `alike`, all ranks do the same and the first represents all.
    """
    templates: dict[_MovePattern, int] = {}
    template, has_messages = list[int](), list[bool]()
    for shape in shapes:
        has_messages.append(shape.collective is not None and (goes_round(shape) or not alike))
        for group in shape.groups[:1] if alike else shape.groups:
            if not has_messages[-1]:
                template.append(-1)
                continue
            found = _template(shape, len(group))
            template.append(templates.setdefault(_of_one(found) if alike else found, len(templates)))
    groups = [[(0,)] if alike else list(shape.groups) for shape in shapes]
    flat = [group for those in groups for group in those]
    columns = _columns(list(templates))
    return MoveTables(
        has_messages=np.array(has_messages, dtype=np.bool_),
        outer=_integers([len(shape.within[0]) if shape.within else 1 for shape in shapes]),
        first_group=_ends([len(those) for those in groups]),
        template=_integers(template),
        group_first=_ends([len(group) for group in flat]),
        group_size=_integers([len(shape.groups[0]) for shape in shapes] if alike else [len(group) for group in flat]),
        ranks=_integers([rank for group in flat for rank in group]),
        local_share=_local_shares(shapes, alike=alike),
        **columns,
    )


def goes_round(shape: Shape) -> bool:
    """Return whether all members behave the same down to the last message.

    They do not in halving and doubling, whose halves differ, nor between two members, whose data shares the connection
    with their requests.
    """
    if shape.collective is None:
        return True
    return shape.algorithm in ("ring", "native") and shape.collective not in _ROOTED and len(shape.groups[0]) > 2


def _local_shares(shapes: Sequence[Shape], *, alike: bool) -> Floats:
    """Return the part of sharded local work that each rank of each group does; with `alike`, that of the first."""
    found = list[float]()
    for shape in shapes:
        for group in shape.groups[:1] if alike else shape.groups:
            weights = shape.weights or (1,) * len(group)
            shares = [weight / sum(weights) for weight in weights]
            found += shares[:1] if alike else shares
    return np.array(found)


def _template(shape: Shape, size: int) -> _MovePattern:
    """Return the template of a group with this many members."""
    collective, algorithm = shape.collective, shape.algorithm
    assert collective is not None
    assert algorithm is not None
    chunks = num_chunks(collective, size, algorithm) if size > 1 else 1
    is_tree = isinstance(algorithm, TreeShape) and size > 1
    is_ring = (collective, algorithm) == ("all_reduce", "native") and size > 1
    if is_ring:
        moves = tuple(Move(0, member, (member + 1) % size, 0, 1, adds=True) for member in range(size))
    else:
        data = sorted(expand(collective, algorithm, size), key=lambda move: move.round) if size > 1 else []
        moves = (*moves_of_sizes(collective, algorithm, size), *data)
    return _MovePattern(
        kind=NATIVE_RING if is_ring else IN_WAVES if is_tree else PIECES,
        num_members=size,
        num_chunks=chunks,
        widest=algorithm.widest if isinstance(algorithm, TreeShape) else 1,
        is_gather=collective in ("gather_v", "all_gather_v"),
        # gloo's own broadcasts and reductions move whole buffers.
        is_whole=algorithm == "native" and collective in ("reduce", "broadcast"),
        moves=moves,
        came=moves,
    )


def _of_one(template: _MovePattern) -> _MovePattern:
    """Return one member's part of a template in which all do the same.

    In each round, as much arrives at the member as it sends.
    """
    moves = tuple(move._replace(destination=0) for move in template.moves if move.source == 0)
    came = tuple(move._replace(source=0) for move in template.moves if move.destination == 0)
    assert [move.round for move in moves] == [move.round for move in came], "all members do alike"
    return template._replace(num_members=1, moves=moves, came=came)


def _columns(templates: Sequence[_MovePattern]) -> dict[str, Any]:
    sources, destinations, channels = list[int](), list[int](), list[int]()
    num_channels, arriving, leaving = list[int](), list[list[int]](), list[list[int]]()
    flat, came = list[Move](), list[Move]()
    for template in templates:
        moves = template.moves
        known: dict[tuple[int, int], int] = {}
        members: list[tuple[list[int], list[int]]] = [([], []) for _ in range(template.num_members)]
        for number, move in enumerate(moves, start=len(flat)):
            channels.append(known.setdefault((move.source, move.destination), len(known)))
            members[move.destination][0].append(number)
            members[move.source][1].append(number)
        flat += moves
        came += template.came
        num_channels.append(len(known))
        sources += [source for source, _ in known]
        destinations += [destination for _, destination in known]
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
