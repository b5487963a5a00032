"""What a study came to, for people and programs."""

from __future__ import annotations

from collections.abc import Sequence

from autosync.datasets.schema import Record
from autosync.plan.bound import bound
from autosync.search.guarantee import Contest, Verdict
from autosync.search.study import Study
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.describe import in_words
from autosync.trials.statistics import Interval


def summary_fields(
    *,
    study: Study,
    model: ModelSpec,
    cluster: ClusterSpec,
    records: Sequence[Record],
    verdict: Verdict,
    wall_seconds: float,
) -> dict[str, object]:
    """The fields of `summary.json`."""
    failed = [record for record in records if record.failure is not None]
    winner = verdict.winner.candidate
    return {
        "schema": "autosync.summary/1",
        "study": study.name,
        "model": model.name,
        "cluster": cluster.name,
        "num_trials": len(records),
        "num_failed_trials": len(failed),
        "wall_seconds": round(wall_seconds, 3),
        "winner": {
            "origin": winner.origin,
            "strategy_id": None if winner.strategy is None else winner.strategy_id,
            "beats_stock_ddp": verdict.beats_default,
            "in_words": "stock DDP as it ships" if winner.strategy is None else in_words(winner.strategy, model),
            "bundle": str(study.folder.best),
        },
        "contests": [_contest(contest) for contest in verdict.contests],
        "bound_seconds": bound(model, cluster).seconds,
        "failures": [{"trial": record.trial, "origin": record.origin, "why": _why(record)} for record in failed],
    }


def _contest(contest: Contest) -> dict[str, object]:
    return {
        "origin": contest.candidate.origin,
        "strategy_id": None if contest.candidate.strategy is None else contest.candidate.strategy_id,
        "seconds": _interval(contest.seconds),
        "speedup_over_stock_ddp": _interval(contest.speedup),
    }


def _interval(interval: Interval) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def _why(record: Record) -> str:
    assert record.failure is not None, "only failures have a reason"
    return f"{record.failure.kind}: {record.failure.message}"
