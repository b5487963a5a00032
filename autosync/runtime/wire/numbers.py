"""Tells all workers a few numbers of each, outside the plan: losses and their weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from autosync.plan.expansion import chunk_bounds, expand
from autosync.runtime.wire.exchange import Exchange
from autosync.runtime.wire.flow_control import Flow
from autosync.runtime.wire.links import Links
from autosync.runtime.wire.transfer_pieces import cut_moves

_TAG = 2**29 - 3
"""The tag of these messages; no operation of a plan has this number."""


def numbers_of_all(links: Links, num_workers: int, mine: Sequence[float]) -> list[list[float]]:
    """Return the numbers of each worker; all of them tell the same count of numbers."""
    table = torch.zeros(num_workers, len(mine), dtype=torch.float64)
    table[links.rank] = torch.tensor(mine, dtype=torch.float64)
    if num_workers > 1:
        # A sum of tables in which each worker has filled its own row: it adds to zeros, so nothing is rounded.
        flat = table.view(-1)
        bounds = chunk_bounds(len(flat), num_workers)
        moves = expand("all_reduce", "tree", num_workers)
        pieces = cut_moves(moves, bounds, position=links.rank, item_bytes=8)
        Exchange(links, Flow()).run(pieces, flat, members=range(num_workers), tag=_TAG, priority=0)
    rows: list[list[float]] = table.tolist()
    return rows
