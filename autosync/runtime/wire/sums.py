"""Sums a few numbers over all workers, outside the plan: losses and their weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from autosync.plan.expansion import chunk_bounds, expand
from autosync.runtime.wire.exchange import Exchange
from autosync.runtime.wire.flow_control import Flow
from autosync.runtime.wire.links import Links
from autosync.runtime.wire.transfer_pieces import cut_moves

_TAG = 2**29 - 3
"""The tag of these messages; no operation of a plan has this number."""


def sums_of_all(links: Links, num_workers: int, parts: Sequence[float]) -> list[float]:
    """Return the sum of each of these numbers over all workers, rounded in the same way on all of them."""
    table = torch.zeros(num_workers, len(parts), dtype=torch.float64)
    table[links.rank] = torch.tensor(parts, dtype=torch.float64)
    if num_workers > 1:
        # Each worker adds its row to zeros, so no sum is rounded on the way.
        flat = table.view(-1)
        bounds = chunk_bounds(len(flat), num_workers)
        moves = expand("all_reduce", "tree", num_workers)
        pieces = cut_moves(moves, bounds, position=links.rank, item_bytes=8)
        Exchange(links, Flow()).run(pieces, flat, members=range(num_workers), tag=_TAG, priority=0)
    return [math.fsum(column) for column in table.T.tolist()]
