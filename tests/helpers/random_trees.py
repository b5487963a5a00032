"""Random shapes: any weighted trees over ranks."""

from __future__ import annotations

import random

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from autosync.strategy.shapes.trees import ABSENT, Parents, TreeShape, TreeShare


def random_tree(rng: random.Random, num_ranks: int, root: int) -> Parents:
    """A star, a chain, or any tree: each rank hangs on one that came before it."""
    order = [root, *rng.sample([rank for rank in range(num_ranks) if rank != root], num_ranks - 1)]
    parents = [root] * num_ranks
    kind = rng.choice(("star", "chain", "any", "any"))
    for place, rank in enumerate(order[1:], start=1):
        parents[rank] = {"star": root, "chain": order[place - 1]}.get(kind, order[rng.randrange(place)])
    return tuple(parents)


def random_share(rng: random.Random, num_ranks: int, num_servers: int = 0) -> TreeShare:
    root = rng.randrange(num_ranks)
    down = _some_absent(rng, random_tree(rng, num_ranks, root), num_servers) if rng.random() < 0.7 else ()
    up = _some_absent(rng, random_tree(rng, num_ranks, root), num_servers)
    return TreeShare(up=up, down=down, weight=rng.choice((1, 1, 2, 3, 7)))


def _some_absent(rng: random.Random, parents: Parents, num_servers: int) -> Parents:
    """The last ranks are servers: some of those that nothing hangs on are left out."""
    first = len(parents) - num_servers
    leaves = [rank for rank in range(first, len(parents)) if rank not in parents]
    absent = {rank for rank in leaves if rng.random() < 0.8}
    return tuple(ABSENT if rank in absent else parent for rank, parent in enumerate(parents))


def random_shape(rng: random.Random, num_ranks: int, *, num_servers: int = 0, max_shares: int = 6) -> TreeShape:
    """Some shares; of these ranks the last `num_servers` serve, and may be absent."""
    count = rng.randint(1, max_shares)
    return TreeShape(shares=tuple(random_share(rng, num_ranks, num_servers) for _ in range(count)))


def shapes(*, max_ranks: int = 9) -> SearchStrategy[TreeShape]:
    """Random shapes; shrinks towards few ranks."""

    def draw(num_ranks: int, seed: int) -> TreeShape:
        return random_shape(random.Random(seed), num_ranks)

    return st.builds(draw, st.integers(2, max_ranks), st.integers(0, 2**32 - 1))
