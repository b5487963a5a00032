"""Estimates how long an all-reduce over trees takes, with its pieces in waves.

Every share is cut into equally many pieces, which follow one another up and down its trees: in wave w, the edges of
round r carry piece w - r. A wave lasts as long as its busiest link. So a link that only the first or the last rounds
use is idle in some waves, in more of them the deeper the trees are. Between waves, ranks wait for one another a little.

A link into a node loses time where many nodes send at once, because they never share it evenly.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from autosync.strategy.shapes.links import Floats, Integers, TreeLinks
from autosync.strategy.shapes.trees import Parents, edges_down, edges_up, heights

PIECE_BYTES = 2**18
"""The greatest length of a piece; `runtime.wire.transfer_pieces` cuts the pieces."""
WAVE_SECONDS = 3e-4
"""What a wave costs beside its bytes. It explains most of what single chains lose, which have the most waves."""
FEW_SENDERS, SENDER_COST = 2, 0.02
"""More senders than these cost a link this share of its time, as measured with three of them."""


def wave_seconds(
    links: TreeLinks, trees: Sequence[tuple[Parents, Parents]], shares: Floats, *, num_bytes: float
) -> float:
    """Return the seconds of an all-reduce of `num_bytes`, divided by `shares` among pairs of trees over nodes."""
    rounds, num_pieces = _rounds(links, trees, shares), pieces_of(shares, num_bytes=num_bytes)
    num_waves = num_pieces + len(rounds) - 1
    return num_bytes / num_pieces * _waves(rounds, num_pieces) + WAVE_SECONDS * num_waves


def pieces_of(shares: Floats, *, num_bytes: float) -> int:
    """Return the number of pieces of every share, which is that of the longest one."""
    return max(1, math.ceil(num_bytes * float(shares.max()) / PIECE_BYTES))


def _rounds(links: TreeLinks, trees: Sequence[tuple[Parents, Parents]], shares: Floats) -> Floats:
    """Return the seconds for which a byte of the whole buffer occupies each link (column) in each round (row)."""
    edges = [_edges(*pair) for pair in trees]
    number, source, destination = np.concatenate(edges, axis=1)
    weight = np.repeat(shares, [one.shape[1] for one in edges])
    num_rounds, num_links = 1 + int(number.max()), len(links.rates)
    message, passed = links.crossings(source, destination)
    passes = np.bincount(number[message] * num_links + passed, weight[message], num_rounds * num_links)
    sends = np.zeros((links.num_nodes, links.num_nodes), dtype=bool)
    sends[destination, source] = True
    costs = np.ones(num_links)
    costs[links.num_nodes : 2 * links.num_nodes] += SENDER_COST * (sends.sum(axis=1) > FEW_SENDERS)
    return passes.reshape(num_rounds, num_links) * costs / links.rates


def _waves(rounds: Floats, num_pieces: int) -> float:
    """Return the sum of all waves; `rounds` has how long a piece of every share occupies each link in each round."""
    num_rounds, num_links = rounds.shape
    until = np.vstack((np.zeros(num_links), np.cumsum(rounds, axis=0)))
    wave = np.arange(num_pieces + num_rounds - 1)
    busy = until[np.minimum(wave + 1, num_rounds)] - until[np.maximum(wave + 1 - num_pieces, 0)]
    return float(busy.max(axis=1).sum())


@functools.lru_cache(maxsize=1024)
def _edges(up: Parents, down: Parents) -> Integers:
    """Return the edges of a share's trees as columns; the rows are the round, the source and the destination."""
    root = next(node for node, parent in enumerate(up) if parent == node)
    return np.array([*edges_up(up), *edges_down(down, begin=heights(up)[root])]).T
