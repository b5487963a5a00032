"""Adds up commutative tables after each epoch. Each rank has sums of its own, and rank 0 has the true tables.

Rank 0 knows the rows of all ranks before the first epoch. Only numbers travel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autosync.loops.accesses import Access
from autosync.loops.declarations import SerialLoop, Tables
from autosync.loops.peers import Peers
from autosync.loops.rank_work import RankWork, received_numbers, rows_of, send_numbers
from autosync.loops.table_rows import touched_rows


class TableSums:
    """The commutative tables of a rank: its own additions are in `tables`, and the true tables in `results` at rank 0.

    `works` holds the work of all ranks, and only rank 0 has it.
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
        summed = [access for access in accesses if access.table in work.summed]
        self._added = [touched_rows(summed, one.records) for one in (works or [work])]

    def add_up(self) -> None:
        """Add the additions of all ranks to the true tables at rank 0, rank by rank."""
        own = self._added[0]
        if self._peers.rank != 0:
            send_numbers(self._peers, own, self._tables, 0)
        else:
            for rank, rows in enumerate(self._added):
                is_own = rank == 0
                added = rows_of(self._tables, rows) if is_own else received_numbers(self._peers, rows, self._loop, rank)
                for name, one in rows.items():
                    self._results[name][one] += added[name]
        for name, one in own.items():
            self._tables[name][one] = 0
