"""The results of a study for users and programs. docs/proof.md explains the fields of `summary.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from autosync.datasets.schema import Flag, Measurement, Record, seconds_of_steps
from autosync.plan.bound_terms import Bound
from autosync.plan.stage_bound import least_divided_memory
from autosync.search.graph_findings import graph_findings
from autosync.search.guarantee import ProofResult, Verdict
from autosync.search.headroom import Headroom, TimeShares, possible_gain, time_shares, with_waits
from autosync.search.input_findings import input_findings
from autosync.search.winner_usage import WinnerUsage
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.specs.profile.quality import profile_fields
from autosync.strategy.describe import schedule_in_words
from autosync.strategy.stage_words import stages_in_words
from autosync.trials.comparison import Ratio
from autosync.units import format_size, format_time


def summary_fields(
    *,
    study: str,
    model: ModelSpec,
    cluster: ClusterSpec,
    records: Sequence[Record],
    baselines: Sequence[Record],
    outages: Sequence[Record] = (),
    verdict: Verdict,
    limit: Bound,
    usage: WinnerUsage,
    bundle: Path,
    divided: Bound | None = None,
    why_undivided: str = "",
) -> dict[str, object]:
    """Return the fields of `summary.json` with the results. The caller adds the fields for the cost of tuning.

    `divided` is the bound of strategies with stages, or `why_undivided` says why the study did not search them.
    """
    gain = possible_gain(verdict.default.measurement, model, cluster, limit, divided)
    return {
        "schema": "autosync.summary/1",
        "study": study,
        "model": model.name,
        "cluster": cluster.name,
        "profile": profile_fields(model),
        "num_trials": len(records),
        "num_failed_trials": sum(record.failure is not None for record in records),
        "num_outages": len(outages),
        "num_stopped_trials": sum(_has_flag(record.measurement, "stopped_early") for record in records),
        "num_busy_trials": sum(_has_flag(record.measurement, "busy_machine") for record in records),
        "num_baseline_trials": len(baselines),
        "tried": tried_by_origin(records),
        "winner": {
            **_winner(verdict, model, usage, bundle),
            "headroom": _headroom(verdict.winner, model, cluster, limit, divided),
            "stages": _stages(verdict.winner, model, cluster),
        },
        "contests": [_contest(result, model, cluster) for result in verdict.results],
        "left_out": {name: f"{failure.kind}: {failure.message}" for name, failure in verdict.left_out.items()},
        "other_cpu_share": verdict.other_cpu_share,
        "bound_seconds": gain.bound.seconds,
        "stages": _stage_findings(model, cluster, limit, divided, why_undivided),
        **_findings(verdict, model, cluster),
        "prospect": {
            "most_times_as_fast": gain.most,
            "exposed_share": 1 - (gain.default.compute + gain.default.input) / gain.default.step,
            "limit": str(gain.limit.largest),
            "in_words": str(gain),
        },
        "fidelity": {
            result.name: found.to_plain() for result in verdict.results if (found := verdict.fidelity(result))
        },
        "failures": [
            {"trial": record.trial, "origin": record.origin, "why": _why(record)}
            for record in (*records, *baselines)
            if record.failure is not None
        ],
        "outages": [{"trial": record.trial, "origin": record.origin, "why": _why(record)} for record in outages],
    }


def _findings(verdict: Verdict, model: ModelSpec, cluster: ClusterSpec) -> dict[str, object]:
    """Return what is known only of some models: of their graphs, and of their input."""
    return {
        "graphs": graph_findings(verdict.winner.candidate.strategy, model, cluster),
        "loader": input_findings(verdict.winner, verdict.default, model),
    }


def tried_by_origin(records: Sequence[Record]) -> dict[str, int]:
    """Return how many strategies each origin has: `baseline`, `preset`, and the origins that proposers use."""
    return dict(Counter(record.origin.partition(":")[0] for record in records))


def _stage_findings(
    model: ModelSpec, cluster: ClusterSpec, limit: Bound, divided: Bound | None, why_undivided: str
) -> dict[str, object]:
    """Return whether strategies with stages were searched, and their bound beside that of all others."""
    if divided is None:
        words = (
            f"strategies that divide the model into stages were not tried: {why_undivided}" if why_undivided else None
        )
        return {"searched": False, "why_not": why_undivided or None, "in_words": words}
    memory = least_divided_memory(model, cluster)
    return {
        "searched": True,
        "bound_seconds": divided.seconds,
        "limit": str(divided.largest),
        "least_memory_bytes": memory,
        "in_words": (
            f"{format_time(divided.seconds)} with stages ({divided.largest.cause}; {format_size(memory)} or more on "
            f"the fullest rank), {format_time(limit.seconds)} without ({limit.largest.cause})"
        ),
    }


def _stages(winner: ProofResult, model: ModelSpec, cluster: ClusterSpec) -> list[str]:
    """Return in words which ranks compute which layers; nothing without stages."""
    strategy = winner.candidate.strategy
    return [] if strategy is None or not strategy.stages else stages_in_words(strategy.stages, model, cluster)


def _winner(verdict: Verdict, model: ModelSpec, usage: WinnerUsage, bundle: Path) -> dict[str, object]:
    winner = verdict.winner
    candidate = winner.candidate
    strategy = candidate.strategy
    inexact = verdict.fidelity(winner)
    return {
        "name": winner.name,
        "role": winner.contestant.role,
        "origin": candidate.origin,
        "strategy_id": None if strategy is None else candidate.strategy_id,
        "classes": ["exact"] if strategy is None else sorted(strategy.classes),
        "beats_stock_ddp": verdict.beats_default,
        "speedup_over_stock_ddp": None if winner.ratio is None else _speedup(winner.ratio),
        "against": [{"name": ratio.name, "other": ratio.other, **_speedup(ratio)} for ratio in verdict.against],
        "in_words": candidate.in_words(model),
        "schedule": None if strategy is None else schedule_in_words(strategy),
        "training": None if inexact is None else str(inexact),
        "bundle": str(bundle),
        "stock_ddp": None if usage.settings is None else usage.settings.to_plain(),
        "why_not_stock_ddp": usage.refusal,
        "use": list(usage.lines),
    }


def _headroom(
    winner: ProofResult, model: ModelSpec, cluster: ClusterSpec, limit: Bound, divided: Bound | None
) -> dict[str, object] | None:
    """Return the possible gain over the winner; None for an inexact winner, for which the bound does not hold."""
    strategy = winner.candidate.strategy
    if strategy is not None and not strategy.is_exact:
        return None
    measured = winner.measurement
    limit = with_waits(limit, measured, time_shares(measured, model, cluster, strategy))
    left = Headroom(step=measured.median_seconds, bound=limit, divided=divided)
    return {
        "share_of_bound": left.share,
        "most_times_as_fast": left.most,
        "limit": str(left.limit.largest),
        "in_words": str(left),
    }


def _contest(result: ProofResult, model: ModelSpec, cluster: ClusterSpec) -> dict[str, object]:
    measured, settings = result.measurement, result.contestant.settings
    shares = time_shares(measured, model, cluster, result.candidate.strategy)
    return {
        "name": result.name,
        "role": result.contestant.role,
        "origin": result.candidate.origin,
        "strategy_id": None if result.candidate.strategy is None else result.candidate.strategy_id,
        "classes": ["exact"] if result.candidate.strategy is None else sorted(result.candidate.strategy.classes),
        "stock_ddp": None if settings is None else settings.arguments(),
        "seconds": {"value": measured.median_seconds, "low": measured.low_seconds, "high": measured.high_seconds},
        "step_seconds": [float(f"{seconds:.6g}") for seconds in seconds_of_steps(measured.step_seconds)],
        "exposed_seconds": max(shares.step - shares.compute - shares.input, 0.0),
        "bytes_sent": None if measured.bytes_sent is None else max(measured.bytes_sent),
        "peak_memory_bytes": max(measured.peak_memory_bytes),
        "cpu_share": measured.cpu_share,
        "time": _time(shares),
        "flags": list(measured.flags),
        "speedup_over_stock_ddp": None if result.ratio is None else _speedup(result.ratio),
    }


def _time(shares: TimeShares) -> dict[str, object]:
    return {
        "compute_seconds": shares.compute,
        "exposed_communication_seconds": shares.exposed,
        "input_seconds": shares.input,
        "idle_seconds": shares.idle,
        "busiest_link": None if shares.link is None else shares.link.link,
        "busiest_link_seconds": None if shares.link is None else shares.link.seconds,
        "busiest_link_share": shares.link_share,
        "processors_seconds": shares.processors,
        "processors_share": shares.processors_share,
        "fullest": shares.busiest[0][0] if shares.busiest else None,
        "fullest_share": shares.busiest[0][1] if shares.busiest else None,
        "in_words": str(shares),
    }


def _speedup(ratio: Ratio) -> dict[str, object]:
    speedup = ratio.speedup
    figures = {"value": speedup.value, "low": speedup.low, "high": speedup.high}
    return {**figures, "verdict": ratio.verdict, "in_words": str(ratio)}


def _has_flag(measurement: Measurement | None, flag: Flag) -> bool:
    return measurement is not None and flag in measurement.flags


def _why(record: Record) -> str:
    assert record.failure is not None, "only failures have a reason"
    return f"{record.failure.kind}: {record.failure.message}"
