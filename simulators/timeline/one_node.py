"""One node that stands for all: if all nodes do the same at the same times, the ranks of one are enough to simulate.

Ranks are numbered node by node, so a ring over all of them passes through a node and goes on to the next. In each round
a node then sends to the next one as much as it receives from the one before. So what arrives at the simulated node is
what leaves it, through its own link. A step of a thousand nodes takes no more messages than one node sends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from autosync.plan.expansion import Move
from autosync.plan.tables import Shape

HERE, NEXT, BEFORE = range(3)
"""The node at the other end of a channel: the same one, the next one, the one before."""

_ROOTED = ("reduce", "broadcast", "gather_v")


class EqualNodes(NamedTuple):
    """The nodes of a cluster, all with the same number of ranks."""

    num_nodes: int
    per_node: int


class NodeMove(NamedTuple):
    """A move that leaves the simulated node's member, the one that arrives there meanwhile, and where the move goes."""

    move: Move
    came: Move
    hop: int


def goes_round(shape: Shape) -> bool:
    """Return whether all members behave the same down to the last message.

    They do not in halving and doubling, whose halves differ, nor between two members, whose data shares the connection
    with their requests.
    """
    if shape.collective is None:
        return True
    return shape.algorithm in ("ring", "native") and shape.collective not in _ROOTED and len(shape.groups[0]) > 2


def is_same_on_nodes(shape: Shape, nodes: EqualNodes) -> bool:
    """Return whether all nodes do the same in operations of a shape.

    Each group is within a node, and each node has such a group, or it goes round all nodes.
    """
    if len(set(shape.weights)) > 1:
        return False
    groups = set(shape.groups)
    for group in shape.groups:
        if _is_within(group, nodes):
            if _on_next_node(group, nodes) not in groups:
                return False
        elif not (goes_round(shape) and _passes_all(group, nodes)):
            return False
    return all(_is_within(group, nodes) for group in shape.within)


def members_on_node(group: Sequence[int], nodes: EqualNodes) -> list[int]:
    """Return the ranks of a group on the first node, in the group's order."""
    return [rank for rank in group if rank < nodes.per_node]


def senders_to_node(group: Sequence[int], nodes: EqualNodes) -> list[int]:
    """Return the members of a group that send to the first node or are on it: its own and those of the last node."""
    count, size = len(members_on_node(group, nodes)), len(group)
    return sorted({*range(count), *range(size - count, size)})


def moves_of_node(moves: Sequence[Move], group: Sequence[int], nodes: EqualNodes) -> Iterator[NodeMove]:
    """Yield the moves that leave the first node's members of a group, in their order.

    `moves` has at least those of `senders_to_node`. Members are numbered among those of the first node.
    """
    count = len(members_on_node(group, nodes))
    size = len(group)
    found = {(move.round, move.source, move.destination): move for move in moves}
    for move in moves:
        if move.source >= count:
            continue
        ahead = move.destination // count * count
        came = found[move.round, (move.source - ahead) % size, move.destination - ahead]
        yield NodeMove(
            move=move._replace(destination=move.destination - ahead),
            came=came._replace(source=move.source),
            hop=NEXT if ahead else HERE,
        )


def hop_of_native_ring(member: int, group: Sequence[int], nodes: EqualNodes) -> int:
    """Return where a member of the first node sends in gloo's own ring, in which each sends to the one before it."""
    return BEFORE if member == 0 and not _is_within(group, nodes) else HERE


def _is_within(group: Sequence[int], nodes: EqualNodes) -> bool:
    return len({rank // nodes.per_node for rank in group}) == 1


def _on_next_node(group: Sequence[int], nodes: EqualNodes) -> tuple[int, ...]:
    num_ranks = nodes.num_nodes * nodes.per_node
    return tuple([(rank + nodes.per_node) % num_ranks for rank in group])


def _passes_all(group: Sequence[int], nodes: EqualNodes) -> bool:
    """Return whether a group has the same ranks of every node, node by node."""
    count = len(members_on_node(group, nodes))
    if count == 0 or len(group) != count * nodes.num_nodes:
        return False
    return all(group[place] == group[place - count] + nodes.per_node for place in range(count, len(group)))
