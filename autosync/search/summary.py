"""What a study came to, for people and programs."""

from __future__ import annotations

from collections.abc import Sequence

from autosync.datasets.schema import Measurement, Record
from autosync.plan.bound import bound
from autosync.search.guarantee import Contest, Verdict
from autosync.search.study import Study
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.trials.compare import Ratio


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
        "num_stopped_trials": sum(_is_stopped(record.measurement) for record in records),
        "wall_seconds": round(wall_seconds, 3),
        "winner": {
            "origin": winner.origin,
            "strategy_id": None if winner.strategy is None else winner.strategy_id,
            "beats_stock_ddp": verdict.beats_default,
            "in_words": winner.in_words(model),
            "bundle": str(study.folder.best),
        },
        "contests": [_contest(contest) for contest in verdict.contests],
        "left_out": {name: f"{failure.kind}: {failure.message}" for name, failure in verdict.left_out.items()},
        "bound_seconds": bound(model, cluster).seconds,
        "failures": [{"trial": record.trial, "origin": record.origin, "why": _why(record)} for record in failed],
    }


def _contest(contest: Contest) -> dict[str, object]:
    measured = contest.measurement
    return {
        "name": contest.candidate.name,
        "origin": contest.candidate.origin,
        "strategy_id": None if contest.candidate.strategy is None else contest.candidate.strategy_id,
        "seconds": {"value": measured.median_seconds, "low": measured.low_seconds, "high": measured.high_seconds},
        "exposed_seconds": measured.exposed_seconds,
        "flags": list(measured.flags),
        "speedup_over_stock_ddp": None if contest.ratio is None else _speedup(contest.ratio),
    }


def _speedup(ratio: Ratio) -> dict[str, object]:
    speedup = ratio.speedup
    figures = {"value": speedup.value, "low": speedup.low, "high": speedup.high}
    return {**figures, "verdict": ratio.verdict, "in_words": str(ratio)}


def _is_stopped(measurement: Measurement | None) -> bool:
    return measurement is not None and "stopped_early" in measurement.flags


def _why(record: Record) -> str:
    assert record.failure is not None, "only failures have a reason"
    return f"{record.failure.kind}: {record.failure.message}"
