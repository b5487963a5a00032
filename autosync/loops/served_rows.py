"""The rows that ranks exchange with servers: for each piece of records, the rows that it touches and changes.

Each rank serves one part of the rows of each served table. The records of a piece are known before the first epoch, so
ranks exchange the numbers of rows once, and later only the numbers in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autosync.loops.accesses import Access
from autosync.loops.peers import Peers, receive_array, send_array
from autosync.loops.record_blocks import balanced_cuts
from autosync.loops.table_rows import TableRows, touched_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """The served tables. `cuts` has the first row of each rank's part, except the first rank's."""

    cuts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    staleness: int = 0

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(self.cuts)

    def parts(self, rows: TableRows, num_ranks: int) -> list[TableRows]:
        """Return the rows of each server."""
        split = {name: np.split(rows[name], np.searchsorted(rows[name], cuts)) for name, cuts in self.cuts.items()}
        return [{name: parts[server] for name, parts in split.items()} for server in range(num_ranks)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRows:
    """The rows of each piece, by other rank. All lists are indexed by piece, then by rank.

    This rank's records touch the rows `pulled` and change the rows `pushed`, which the other rank serves. The other
    rank's records touch the rows `asked` and change the rows `told`, which this rank serves.
    """

    pulled: Sequence[Sequence[TableRows]]
    pushed: Sequence[Sequence[TableRows]]
    asked: Sequence[Sequence[TableRows]]
    told: Sequence[Sequence[TableRows]]


def plan_servers(
    names: Iterable[str],
    accesses: Iterable[Access],
    pieces: Iterable[np.ndarray[Any, Any]],
    num_ranks: int,
    staleness: int,
) -> ServerPlan:
    """Cut the rows of tables into parts that receive equally many rows from the pieces of all ranks."""
    names = list(names)
    touching = [access for access in accesses if access.table in names]
    found = [touched_rows(touching, piece) for piece in pieces]
    cuts = {name: balanced_cuts(np.concatenate([rows[name] for rows in found]), num_ranks) for name in names}
    return ServerPlan(cuts=cuts, staleness=staleness)


def exchange_rows(
    peers: Peers, plan: ServerPlan, accesses: Iterable[Access], pieces: Iterable[np.ndarray[Any, Any]]
) -> ServedRows:
    """Tell each server the rows of this rank's pieces, and receive the rows that other ranks need of this one."""
    touching = [access for access in accesses if access.table in plan.cuts]
    changing = [access for access in touching if access.changes]
    own = list(pieces)
    sent = [[plan.parts(touched_rows(kind, piece), peers.num_ranks) for piece in own] for kind in (touching, changing)]
    received: list[list[list[TableRows]]] = [[], []]
    # One rank sends at a time, so that no two ranks wait for each other.
    for sender in range(peers.num_ranks):
        for lists, found in zip(sent, received, strict=True):
            if sender != peers.rank:
                found.append(_receive_lists(peers, plan.tables, sender))
                continue
            for rank in range(peers.num_ranks):
                if rank != peers.rank:
                    _send_lists(peers, [parts[rank] for parts in lists], plan.tables, rank)
            found.append([parts[peers.rank] for parts in lists])
    asked, told = ([list(of_piece) for of_piece in zip(*found, strict=True)] for found in received)
    return ServedRows(pulled=sent[0], pushed=sent[1], asked=asked, told=told)


def union_of(lists: Iterable[Sequence[TableRows]], names: Iterable[str]) -> TableRows:
    """Return all rows of the lists, ascending and without repetition."""
    found = [rows for of_piece in lists for rows in of_piece]
    return {name: np.unique(np.concatenate([rows[name] for rows in found])) for name in names}


def _send_lists(peers: Peers, lists: Sequence[TableRows], names: Iterable[str], to: int) -> None:
    for name in names:
        send_array(peers, np.array([len(rows[name]) for rows in lists], dtype=np.int64), to)
        send_array(peers, np.concatenate([rows[name] for rows in lists]), to)


def _receive_lists(peers: Peers, names: Iterable[str], source: int) -> list[TableRows]:
    """Receive the lists that `_send_lists` sent."""
    columns = {}
    for name in names:
        lengths = receive_array(peers, np.int64, source)
        columns[name] = np.split(receive_array(peers, np.int64, source), np.cumsum(lengths)[:-1])
    num_pieces = len(next(iter(columns.values())))
    return [{name: parts[piece] for name, parts in columns.items()} for piece in range(num_pieces)]
