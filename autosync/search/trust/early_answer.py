"""What a search remembers of its early proof: it goes on beside that answer, and proves again only what is faster."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autosync.search.candidates import STOCK_DDP
from autosync.search.guarantee import Verdict
from autosync.search.shown_summary import ShownSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyAnswer:
    """The answer so far of a search that goes on; without contestants, there is none.

    `strategy_ids` are of the contestants that ran as in trials. `fastest_seconds` is the time of the fastest contestant
    that may win. `lost` are strategies that cannot win, because their training failed, and `winner_id` is the strategy
    that won, if one did.
    """

    strategy_ids: frozenset[str] = frozenset()
    fastest_seconds: float = math.inf
    lost: frozenset[str] = frozenset()
    winner_id: str | None = None

    @staticmethod
    def of(verdict: Verdict) -> EarlyAnswer:
        """Return what is remembered of a verdict."""
        lost = frozenset(key for key, one in verdict.fidelities.items() if one.cannot_win)
        allowed = [one for one in verdict.results if one.candidate.strategy_id not in lost]
        return EarlyAnswer(
            # The best bucket runs as stock DDP with an argument; a trial of the same buckets is another.
            strategy_ids=frozenset(
                one.candidate.strategy_id for one in verdict.results if one.contestant.role != "best bucket"
            ),
            fastest_seconds=min(one.measurement.median_seconds for one in allowed),
            lost=lost,
            winner_id=verdict.winner.candidate.strategy_id if verdict.beats_default else None,
        )

    @staticmethod
    def kept(summary: ShownSummary) -> EarlyAnswer:
        """Return what a summary says of the study's early proof: nothing, if it is of a proof after the search."""
        if not summary.proved_at_once:
            return EarlyAnswer()
        ids = {one.name: one.strategy_id or STOCK_DDP.strategy_id for one in summary.contests}
        lost = frozenset(ids[name] for name, one in summary.fidelity.items() if one.cannot_win and name in ids)
        return EarlyAnswer(
            strategy_ids=frozenset(ids[one.name] for one in summary.contests if one.role != "best bucket"),
            fastest_seconds=min(one.seconds.value for one in summary.contests if ids[one.name] not in lost),
            lost=lost,
            winner_id=ids[summary.winner.name] if summary.winner.beats_stock_ddp else None,
        )
