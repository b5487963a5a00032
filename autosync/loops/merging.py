"""Merges the ranks' copies of commutative and buffered tables, at rank 0 and in the order of the ranks.

The rows that a loop touches do not depend on its results, so all ranks know the rows of each merge before the first
epoch. Only numbers travel: one message from each rank, and one message to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from autosync.loops.accesses import Access
from autosync.loops.declarations import Records, SerialLoop, Tables
from autosync.loops.peers import Peers, receive_array, send_array
from autosync.loops.rank_work import RankWork
from autosync.loops.table_rows import TableRows, touched_rows

_MERGE_TAG = 2
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Merger:
    """The merged tables of a rank.

    The rank's records change `tables`: copies of the buffered tables, and for commutative tables its own additions.
    `results` holds the true tables. They are complete at rank 0; other ranks have the state of the last merge. `works`
    holds the work of all ranks, and only rank 0 has it.
    """

    def __init__(
        self,
        peers: Peers,
        loop: SerialLoop,
        accesses: Iterable[Access],
        tables: Tables,
        results: Tables,
        *,
        work: RankWork,
        works: Sequence[RankWork],
    ) -> None:
        self._peers = peers
        self._loop = loop
        self._tables = tables
        self._results = results
        changing = [access for access in accesses if access.changes]
        buffered = [access for access in changing if loop.tables[access.table].updates == "buffered"]
        commutative = [access for access in changing if loop.tables[access.table].updates == "commutative"]
        self.is_needed = bool(buffered) and peers.num_ranks > 1
        self._own: list[TableRows] = []
        self._of_all: list[list[TableRows]] = []
        self._merged: list[TableRows] = []
        self._added: list[TableRows] = []
        if peers.num_ranks == 1:
            return
        self._added = [touched_rows(commutative, one.records) for one in (works or [work])]
        if self.is_needed:
            self._own = [touched_rows(buffered, piece) for piece in pieces_of(work)]
            if peers.rank == 0:
                self._of_all = [[touched_rows(buffered, piece) for piece in pieces_of(one)] for one in works]
                self._merged = [_union(rows) for rows in zip(*self._of_all, strict=True)]
                for rank in range(1, peers.num_ranks):
                    _send_lists(peers, self._merged, rank)
            else:
                names = list(dict.fromkeys(access.table for access in buffered))
                self._merged = _receive_lists(peers, names)

    def merge(self, place: int) -> None:
        """Merge the buffered tables after each rank has run the piece at this place in the epoch."""
        peers, merged = self._peers, self._merged[place]
        changes = {name: self._tables[name][one] - self._results[name][one] for name, one in self._own[place].items()}
        if peers.rank != 0:
            self._send(_packed(changes.values()), 0)
            numbers = self._receive(merged, 0)
        else:
            for rank, rows in enumerate(self._of_all):
                theirs = changes if rank == 0 else self._receive(rows[place], rank)
                for name, one in rows[place].items():
                    self._results[name][one] += theirs[name]
            numbers = {name: self._results[name][one] for name, one in merged.items()}
            message = _packed(numbers.values())
            for rank in range(1, peers.num_ranks):
                self._send(message, rank)
        for name, one in merged.items():
            self._results[name][one] = self._tables[name][one] = numbers[name]

    def add_up(self) -> None:
        """Add the additions of all ranks in an epoch to the true commutative tables at rank 0."""
        if not any(self._added):
            return
        own = self._added[0]
        mine = {name: self._tables[name][one] for name, one in own.items()}
        if self._peers.rank != 0:
            self._send(_packed(mine.values()), 0)
        else:
            for rank, rows in enumerate(self._added):
                theirs = mine if rank == 0 else self._receive(rows, rank)
                for name, one in rows.items():
                    self._results[name][one] += theirs[name]
        for name, one in own.items():
            self._tables[name][one] = 0

    def _send(self, message: Bytes, to: int) -> None:
        if message.nbytes:
            self._peers.post_send(message, to, _MERGE_TAG).wait()

    def _receive(self, rows: TableRows, source: int) -> Tables:
        """Receive the numbers of these rows in one message."""
        shapes = {name: (len(one), *self._loop.tables[name].shape[1:]) for name, one in rows.items()}
        dtypes = {name: np.dtype(self._loop.tables[name].dtype) for name in rows}
        sizes = [int(np.prod(shape)) * dtypes[name].itemsize for name, shape in shapes.items()]
        message = np.empty(sum(sizes), dtype=np.uint8)
        if message.nbytes:
            self._peers.post_receive(message, source, _MERGE_TAG).wait()
        parts = np.split(message, np.cumsum(sizes)[:-1]) if sizes else []
        return {
            name: np.frombuffer(part.tobytes(), dtype=dtypes[name]).reshape(shapes[name])
            for name, part in zip(rows, parts, strict=True)
        }


def pieces_of(work: RankWork) -> Iterator[Records]:
    """Yield the records of a rank between two merges, in the order in which it runs them."""
    begin = 0
    for cell in work.cells:
        yield from np.array_split(work.records[begin : begin + cell.num_records], work.num_pieces)
        begin += cell.num_records


def _packed(arrays: Iterable[np.ndarray[Any, Any]]) -> Bytes:
    parts = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint8)


def _union(all_rows: Iterable[TableRows]) -> TableRows:
    found: dict[str, list[np.ndarray[Any, Any]]] = {}
    for rows in all_rows:
        for name, one in rows.items():
            found.setdefault(name, []).append(one)
    return {name: np.unique(np.concatenate(parts)) for name, parts in found.items()}


def _send_lists(peers: Peers, lists: Sequence[TableRows], to: int) -> None:
    """Send lists of rows that all have the same tables."""
    for name in lists[0] if lists else ():
        send_array(peers, np.array([len(rows[name]) for rows in lists], dtype=np.int64), to)
        send_array(peers, np.concatenate([rows[name] for rows in lists]), to)


def _receive_lists(peers: Peers, names: Sequence[str]) -> list[TableRows]:
    """Receive the lists that `_send_lists` sent, for the named tables in order."""
    columns = []
    for _ in names:
        lengths = receive_array(peers, np.int64, 0)
        columns.append(np.split(receive_array(peers, np.int64, 0), np.cumsum(lengths)[:-1]))
    return [dict(zip(names, rows, strict=True)) for rows in zip(*columns, strict=True)]
