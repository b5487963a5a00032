"""The end of tuning: writes the winner's bundle and the summary, with instructions for using the winner."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autosync import jsonio
from autosync.datasets.schema import Record
from autosync.frames import sentence_and_table
from autosync.search.candidates import candidate_of
from autosync.search.guarantee import Verdict
from autosync.search.headroom import with_loader
from autosync.search.own_cost import peak_memory_bytes
from autosync.search.running_study import RunningStudy
from autosync.search.search_loop import SearchLoop
from autosync.search.summary import summary_fields
from autosync.search.tuning_plan import TuningPlan
from autosync.search.winner_usage import bundle_of, usage, write_bundle
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecords:
    """All records of a study: those of the search in order, those of the proof alone, and failures of the machines."""

    searched: tuple[Record, ...]
    baselines: tuple[Record, ...]
    outages: tuple[Record, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The result of tuning: the study's folder, the verdict, and the fields of `summary.json`.

    `records` has the trials of the search in their order, `baselines` those that were run for the proof alone.
    """

    folder: Path
    model: ModelSpec
    cluster: ClusterSpec
    records: tuple[Record, ...]
    baselines: tuple[Record, ...]
    verdict: Verdict
    summary: dict[str, object]

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each trial of the search. Times are milliseconds of a step; failed trials have none."""
        import pandas as pd

        measured = [one.measurement for one in self.records]
        return pd.DataFrame(
            {
                "trial": [one.trial for one in self.records],
                "strategy": [candidate_of(one).name for one in self.records],
                "origin": [one.origin for one in self.records],
                "step_ms": [None if one is None else one.median_seconds * 1e3 for one in measured],
                "low_ms": [None if one is None else one.low_seconds * 1e3 for one in measured],
                "high_ms": [None if one is None else one.high_seconds * 1e3 for one in measured],
                "flags": ["" if one is None else ", ".join(one.flags) for one in measured],
                "failure": ["" if one.failure is None else one.failure.message for one in self.records],
            }
        )

    def _repr_html_(self) -> str:
        ratio = self.verdict.winner.ratio
        sentence = "Nothing tried is faster than stock DDP for certain: keep it."
        if self.verdict.beats_default and ratio is not None:
            sentence = f"{ratio}."
        return sentence_and_table(f"{sentence} The bundle: {self.folder / 'best.yaml'}", self.verdict.to_frame())


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstAnswer:
    """The verdict of the early proof, and how many seconds after the start of tuning it came."""

    verdict: Verdict
    wall_seconds: float

    def fields(self) -> dict[str, object]:
        """Return the fields of `summary.json`."""
        winner = self.verdict.winner
        strategy_id = winner.candidate.strategy_id
        return {"name": winner.name, "strategy_id": strategy_id, "wall_seconds": round(self.wall_seconds, 3)}


def records_of(running: RunningStudy, search: SearchLoop) -> TrialRecords:
    """Return the records of a study that is still open."""
    return TrialRecords(
        searched=tuple(search.status.records),
        baselines=tuple(running.study.for_proof()),
        outages=tuple(running.study.outages()),
    )


def hand_over(
    plan: TuningPlan,
    running: RunningStudy,
    search: SearchLoop,
    verdict: Verdict,
    records: TrialRecords,
    *,
    output: Path | None,
    began: float,
    first: FirstAnswer | None = None,
    is_last: bool = True,
) -> Tuned:
    """Write the winner's bundle and the summary. `began` is the start of tuning on the monotonic clock.

    `first` is the answer of an early proof, which may be the verdict. Without `is_last` the search goes on, and what
    is written is the answer so far.
    """
    trials, folder = running.trials, plan.folder
    bundle = bundle_of(trials, verdict.winner)
    path = write_bundle(bundle, folder.best, output)
    how = usage(verdict.winner, bundle, path, script=folder.script)
    _write_script(how.script, folder.script)
    summary = summary_fields(
        study=running.study.name,
        model=plan.model,
        cluster=plan.cluster,
        records=records.searched,
        baselines=records.baselines,
        outages=records.outages,
        verdict=verdict,
        limit=with_loader(trials.bound(), verdict.loader_seconds),
        divided=trials.stage_bound(),
        why_undivided=plan.told_undivided,
        usage=how,
        bundle=folder.best,
    )
    wall_seconds = time.monotonic() - began
    summary |= {
        "proposer": plan.settings.proposer,
        "proved_at_once": first is not None and verdict is first.verdict,
        "first_answer": None if first is None else first.fields(),
        **_course_fields(search),
        "wall_seconds": round(wall_seconds, 3),
        "own_seconds": round(wall_seconds - running.service.busy_seconds, 3),
        "peak_memory_bytes": peak_memory_bytes(),
    }
    jsonio.write_json(folder.summary, summary)
    winner = verdict.winner
    if is_last:
        running.study.mark_winner(winner.candidate, f"{winner.ratio or 'nothing tried is faster'}.")
    return Tuned(
        folder=folder.path,
        model=plan.model,
        cluster=plan.cluster,
        records=records.searched,
        baselines=records.baselines,
        verdict=verdict,
        summary=summary,
    )


def _course_fields(search: SearchLoop) -> dict[str, object]:
    """Return the fields of `summary.json` about the course of a search."""
    return {
        "ended": search.ended,
        "forecasts": [{"after_trials": number, **found.fields()} for number, found in search.forecasts],
        "search_seconds": round(search.search_seconds, 3),
    }


def _write_script(script: str | None, path: Path) -> None:
    """Write the Python file of a winner that needs one, or remove the file that an earlier winner has left."""
    if script is None:
        path.unlink(missing_ok=True)
    else:
        jsonio.write_text(path, script)
