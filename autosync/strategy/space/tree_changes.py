"""Changes of one message's trees. The result is always a legal shape over the same ranks.

Weights decide how much data each tree carries and, with `sharded`, how large the shard of its root is.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from autosync.strategy.representation import Message, Strategy
from autosync.strategy.shapes.trees import ABSENT, MAX_TOTAL_WEIGHT, Parents, TreeShare, simplified
from autosync.strategy.space.editing import Room, with_message

MOST_SHARES = 64
FINEST = 64
"""A change of weights moves a part of the data as small as one in so many."""

Trees = tuple[TreeShare, ...]


def has_trees(message: Message) -> bool:
    """Whether a message has written-out trees."""
    return bool(message.synchroniser.written_trees)


def change_trees(room: Room, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Change the trees of one message: move weight between shares, hang a rank elsewhere, or add a share."""
    found = [position for position, message in enumerate(strategy.messages) if has_trees(message)]
    if not found or "trees" not in room.limits.topologies:
        return None
    position = rng.choice(found)
    message = strategy.messages[position]
    changed = rng.choice(_CHANGES)(message.synchroniser.written_trees, rng)
    if changed is None:
        return None
    synchroniser = message.synchroniser.over(simplified(changed))
    return with_message(strategy, position, replace(message, synchroniser=synchroniser))


def _move_weight(shares: Trees, rng: random.Random) -> Trees | None:
    """Move weight from one share to another. A share that loses all its weight is dropped."""
    if len(shares) < 2:
        return None
    weights = _fine(shares)
    giver, taker = rng.sample(range(len(shares)), 2)
    moved = rng.randint(1, weights[giver])
    weights[giver] -= moved
    weights[taker] += moved
    return tuple([replace(share, weight=weight) for share, weight in zip(shares, weights, strict=True) if weight])


def _hang_elsewhere(shares: Trees, rng: random.Random) -> Trees | None:
    """Give a rank of one tree another parent, which is not below it; all ranks below come with it."""
    position = rng.randrange(len(shares))
    share = shares[position]
    is_up = rng.random() < 0.5
    parents = share.up if is_up else share.distribution
    movable = [rank for rank, parent in enumerate(parents) if parent not in (rank, ABSENT)]
    rank = rng.choice(movable)
    below = _below(parents, rank)
    homes = [
        other
        for other, parent in enumerate(parents)
        if parent != ABSENT and other not in below and other != parents[rank]
    ]
    if not homes:
        return None
    changed = (*parents[:rank], rng.choice(homes), *parents[rank + 1 :])
    # Without `down`, a change of `up` alone must not change the way back.
    moved = replace(share, up=changed, down=share.distribution) if is_up else replace(share, down=changed)
    return (*shares[:position], moved, *shares[position + 1 :])


def _add_share(shares: Trees, rng: random.Random) -> Trees | None:
    """Give a part of one share to a new one with the same edges, but another root."""
    if len(shares) >= MOST_SHARES:
        return None
    weights = _fine(shares)
    position = rng.randrange(len(shares))
    share, weight = shares[position], weights[position]
    roots = [rank for rank in range(share.num_ranks) if rank not in (share.root, *share.absent)]
    if weight < 2 or not roots:
        return None
    root, part = rng.choice(roots), rng.randint(1, weight // 2)
    weights[position] -= part
    added = TreeShare(up=_rerooted(share.up, root), down=_rerooted(share.distribution, root), weight=part)
    return (*[replace(one, weight=weight) for one, weight in zip(shares, weights, strict=True)], added)


_CHANGES: tuple[Callable[[Trees, random.Random], Trees | None], ...] = (_move_weight, _hang_elsewhere, _add_share)


def _fine(shares: Trees) -> list[int]:
    """Return the weights, multiplied so that they add up to `FINEST` or more, if that is possible."""
    total = sum([share.weight for share in shares])
    factor = max(1, min(-(-FINEST // total), MAX_TOTAL_WEIGHT // total))
    return [share.weight * factor for share in shares]


def _below(parents: Parents, rank: int) -> set[int]:
    """Return a rank and all ranks below it in a tree."""
    found, new = {rank}, {rank}
    while new:
        new = {one for one, parent in enumerate(parents) if parent in new} - found
        found |= new
    return found


def _rerooted(parents: Parents, root: int) -> Parents:
    """Return the tree of the same edges with another root."""
    changed = list(parents)
    place, parent = root, root
    while True:
        above = parents[place]
        changed[place] = parent
        if above == place:
            return tuple(changed)
        place, parent = above, place
