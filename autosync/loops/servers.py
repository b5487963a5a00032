"""Tables that ranks share through servers: every rank serves a part of their rows, beside its own records.

A rank runs its records in pieces. After a piece it sends the changes of rows to their servers. A server adds the
changes of all ranks up, rank by rank, and sends each rank the rows of a later piece. With staleness 0, piece k reads
the changes of all ranks in pieces before k. With staleness s, it reads those of pieces before k - s, and the rank's own
later changes; messages then travel while records run. At the end of an epoch all changes are merged. So the result
depends on the pieces alone, and not on speeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from autosync.loops.accesses import Access
from autosync.loops.declarations import SerialLoop, Tables
from autosync.loops.peers import Peers, Pending
from autosync.loops.rank_work import (
    RankWork,
    pieces_of,
    receive_numbers,
    receive_rows,
    send_numbers,
    send_rows,
)
from autosync.loops.served_rows import exchange_rows, union_of
from autosync.loops.table_rows import TableRows

_PUSH_TAG = 2
_PULL_TAG = 3
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Numbers = Mapping[str, np.ndarray[Any, Any]]


class TableServers:
    """A rank's part in the servers. Its records change `tables`; `results` holds the rows that it serves.

    Call `begin_epoch`, then `take` before and `put` after each piece, then `end_epoch`. All ranks have equally many
    pieces. Only the thread that runs the records may call.
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
    ) -> None:
        self._peers = peers
        self._loop = loop
        self._tables = tables
        self._results = results
        self._staleness = work.servers.staleness
        # Half of the staleness hides the way to the server, the other half hides the way back.
        self._delay = (self._staleness + 1) // 2
        self.is_needed = bool(work.servers.tables) and peers.num_ranks > 1
        self.sent_bytes = 0
        self._own_answers: dict[int, Numbers] = {}
        self._own_changes: dict[int, Numbers] = {}
        self._base: Numbers = {}
        self._awaited: dict[tuple[int, int, int], _Awaited] = {}
        self._sends: list[tuple[int, Pending, Bytes]] = []
        if not self.is_needed:
            return
        names = work.servers.tables
        self._rows = exchange_rows(peers, work.servers, accesses, pieces_of(work))
        self._num_pieces = len(self._rows.pulled)
        self._marks = {name: np.zeros(len(tables[name]), dtype=bool) for name in names}
        self._changed = [union_of([self._rows.told[piece] for piece in range(self._num_pieces)], names)]
        self._begin(union_of([self._rows.asked[piece] for piece in range(self._num_pieces)], names))

    def _begin(self, touched: TableRows) -> None:
        """Bring the initial numbers of all served rows from rank 0 to their servers."""
        peers = self._peers
        if peers.rank != 0:
            send_rows(peers, touched, 0)
            send_rows(peers, self._changed[0], 0)
            receive_numbers(peers, touched, self._loop, self._results, 0)
            return
        for rank in range(1, peers.num_ranks):
            needed = receive_rows(peers, rank)
            self._changed.append(receive_rows(peers, rank))
            send_numbers(peers, needed, self._results, rank)

    def begin_epoch(self) -> None:
        for piece in range(min(self._staleness + 1, self._num_pieces)):
            self._answer(piece)

    def take(self, piece: int) -> None:
        """Write the rows of a piece into the tables, in the state that its staleness allows."""
        for server, rows in enumerate(self._rows.pulled[piece]):
            is_own = server == self._peers.rank
            numbers = self._own_answers.pop(piece) if is_own else self._receive(_PULL_TAG, piece, server)
            for name, one in rows.items():
                self._tables[name][one] = numbers[name]
        self._own_changes.pop(piece - self._staleness - 1, None)
        for earlier in sorted(self._own_changes):
            self._add_own(earlier, piece)
        self._base = {name: self._tables[name][one] for name, one in self._pushed(piece).items()}

    def _pushed(self, piece: int) -> TableRows:
        """Return the rows that this rank's piece changes, at all servers."""
        parts = self._rows.pushed[piece]
        return {name: np.concatenate([rows[name] for rows in parts]) for name in parts[0]}

    def _add_own(self, earlier: int, piece: int) -> None:
        """Add the changes of an own earlier piece to the rows of a piece whose numbers came without them."""
        changed = self._pushed(earlier)
        for name, marks in self._marks.items():
            here = [rows[name] for rows in self._rows.pulled[piece]]
            for rows in here:
                marks[rows] = True
            both = marks[changed[name]]
            self._tables[name][changed[name][both]] += self._own_changes[earlier][name][both]
            for rows in here:
                marks[rows] = False

    def put(self, piece: int) -> None:
        """Send the changes of a piece to the servers, and serve the pieces that are due."""
        rows = self._pushed(piece)
        changes = {name: self._tables[name][one] - self._base[name] for name, one in rows.items()}
        self._own_changes[piece] = changes
        begin = dict.fromkeys(rows, 0)
        for server, parts in enumerate(self._rows.pushed[piece]):
            ends = {name: begin[name] + len(one) for name, one in parts.items()}
            if server != self._peers.rank:
                self._send(_PUSH_TAG, piece, [changes[name][begin[name] : ends[name]] for name in parts], server)
            begin = ends
        for rank, told in enumerate(self._rows.told[piece]):
            if rank != self._peers.rank:
                self._await(_PUSH_TAG, piece, told, rank)
        if piece >= self._delay:
            self._merge(piece - self._delay)
        # All ranks have received the messages of such early pieces, or this piece could not have begun.
        self._finish_sends(piece - self._staleness - 2)

    def end_epoch(self) -> None:
        """Merge all changes of the epoch."""
        for piece in range(max(0, self._num_pieces - self._delay), self._num_pieces):
            self._merge(piece)
        self._own_changes.clear()
        self._finish_sends(self._num_pieces)

    def bring(self) -> None:
        """Send all served rows that change to rank 0."""
        if not self.is_needed:
            return
        if self._peers.rank != 0:
            send_numbers(self._peers, self._changed[0], self._results, 0)
            return
        for rank in range(1, self._peers.num_ranks):
            receive_numbers(self._peers, self._changed[rank], self._loop, self._results, rank)

    def _merge(self, piece: int) -> None:
        """Add the changes of all ranks in a piece to the served rows, and send the numbers for a later piece."""
        for rank, rows in enumerate(self._rows.told[piece]):
            is_own = rank == self._peers.rank
            changes = self._own_part(piece) if is_own else self._receive(_PUSH_TAG, piece, rank)
            for name, one in rows.items():
                self._results[name][one] += changes[name]
        if (later := piece + self._staleness + 1) < self._num_pieces:
            self._answer(later)

    def _own_part(self, piece: int) -> Numbers:
        """Return this rank's changes in a piece of the rows that it serves itself."""
        before = self._rows.pushed[piece][: self._peers.rank]
        found = {}
        for name, one in self._rows.pushed[piece][self._peers.rank].items():
            begin = sum(len(rows[name]) for rows in before)
            found[name] = self._own_changes[piece][name][begin : begin + len(one)]
        return found

    def _answer(self, piece: int) -> None:
        """Send each rank the served rows of its piece, and begin to receive this rank's rows from other servers."""
        for rank, asked in enumerate(self._rows.asked[piece]):
            numbers = {name: self._results[name][one] for name, one in asked.items()}
            if rank == self._peers.rank:
                self._own_answers[piece] = numbers
            else:
                self._send(_PULL_TAG, piece, numbers.values(), rank)
                self._await(_PULL_TAG, piece, self._rows.pulled[piece][rank], rank)

    def _send(self, tag: int, piece: int, arrays: Iterable[np.ndarray[Any, Any]], to: int) -> None:
        parts = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
        message = np.concatenate(parts)
        if message.nbytes:
            self._sends.append((piece, self._peers.post_send(message, to, tag), message))
            self.sent_bytes += message.nbytes

    def _finish_sends(self, last: int) -> None:
        """Wait until all messages about pieces up to the last one are sent."""
        for piece, pending, _ in self._sends:
            if piece <= last:
                pending.wait()
        self._sends = [one for one in self._sends if one[0] > last]

    def _await(self, tag: int, piece: int, rows: TableRows, source: int) -> None:
        """Begin to receive the numbers of these rows in one message."""
        shapes = {name: (len(one), *self._loop.tables[name].shape[1:]) for name, one in rows.items()}
        sizes = [int(np.prod(shape)) * self._tables[name].itemsize for name, shape in shapes.items()]
        message = np.empty(sum(sizes), dtype=np.uint8)
        pending = self._peers.post_receive(message, source, tag) if message.nbytes else None
        self._awaited[tag, piece, source] = _Awaited(shapes, message, pending)

    def _receive(self, tag: int, piece: int, source: int) -> Numbers:
        """Wait for the message of a piece, and return its numbers."""
        awaited = self._awaited.pop((tag, piece, source))
        if awaited.pending is not None:
            awaited.pending.wait()
        found, begin = {}, 0
        for name, shape in awaited.shapes.items():
            dtype = self._tables[name].dtype
            count = int(np.prod(shape))
            numbers = np.frombuffer(awaited.message[begin : begin + count * dtype.itemsize].tobytes(), dtype=dtype)
            found[name] = numbers.reshape(shape)
            begin += count * dtype.itemsize
        return found


@dataclass(frozen=True, slots=True)
class _Awaited:
    """A message that this rank is receiving, with the shapes of the arrays in it."""

    shapes: Mapping[str, tuple[int, ...]]
    message: Bytes
    pending: Pending | None
