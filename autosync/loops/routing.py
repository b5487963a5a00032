"""Sends and receives the messages of a skewed schedule, beside a rank's blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autosync.loops.declarations import Tables
from autosync.loops.peers import Peers, Pending
from autosync.loops.row_routes import RowMessage

_ROUTE_TAG = 2**20


class RowRouter:
    """The messages of one rank. Before each block call `expect`, some time later `take`, and after the block `send`."""

    def __init__(self, peers: Peers, messages: Sequence[RowMessage], tables: Tables) -> None:
        self._peers = peers
        self._tables = tables
        self._arriving: dict[int, list[RowMessage]] = {}
        self._leaving: dict[int, list[RowMessage]] = {}
        for one in messages:
            if one.target == peers.rank:
                self._arriving.setdefault(one.needed_by, []).append(one)
            else:
                self._leaving.setdefault(one.sent_after, []).append(one)
        self._expected: dict[int, list[_Expected]] = {}

    def expect(self, position: int, *, is_first: bool) -> None:
        """Begin to receive the rows that a block needs. In the first epoch none come from an epoch before."""
        due = [one for one in self._arriving.get(position, []) if not (is_first and one.crosses_epochs)]
        self._expected[position] = [self._begin(one) for one in due]

    def take(self, position: int) -> None:
        """Wait for the expected rows of a block and write them into the tables."""
        for expected in self._expected.pop(position, []):
            for pending in expected.waits:
                pending.wait()
            for name, rows in expected.message.rows.items():
                self._tables[name][rows] = expected.arrays[name]

    def _begin(self, message: RowMessage) -> _Expected:
        arrays = {
            name: np.empty((len(rows), *self._tables[name].shape[1:]), self._tables[name].dtype)
            for name, rows in message.rows.items()
        }
        waits = [
            self._peers.post_receive(array, message.source, _ROUTE_TAG + message.number)
            for array in arrays.values()
            if array.size
        ]
        return _Expected(message, arrays, waits)

    def send(self, position: int) -> list[tuple[Pending, np.ndarray]]:
        """Begin to send the rows that other ranks need of a block, and return what is under way."""
        sends = []
        for one in self._leaving.get(position, []):
            for name, rows in one.rows.items():
                array = self._tables[name][rows]
                if array.size:
                    sends.append((self._peers.post_send(array, one.target, _ROUTE_TAG + one.number), array))
        return sends

    def finish(self) -> None:
        """Receive the rows for a next epoch, after the last one."""
        crossing = [one for due in self._arriving.values() for one in due if one.crosses_epochs]
        for expected in [self._begin(one) for one in crossing]:
            for pending in expected.waits:
                pending.wait()


@dataclass(frozen=True, slots=True)
class _Expected:
    """A message that this rank is receiving."""

    message: RowMessage
    arrays: Mapping[str, np.ndarray]
    waits: list[Pending]
