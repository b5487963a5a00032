"""Timelines of stock DDP and of the winner: recorded after the proof, or simulated where nothing was recorded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autosync.errors import InputError
from autosync.pictures.paired_steps import NamedTimeline, paired_steps_picture
from autosync.pictures.trace_file import RankTrace, ranks_of, read_trace
from autosync.report.study_report import StudyReport
from autosync.search.candidates import default_as_strategy
from autosync.simulators.timeline.scene_builder import MOST_RANKS
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.strategy.bundle import Bundle
from autosync.strategy.representation import Strategy

LARGE = 20_000
"""The product of variables and ranks above which no timeline is simulated, because it would take too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePicture:
    """A picture of a step of stock DDP, above one of the winner if another strategy won, and its caption."""

    svg: str
    caption: str


def timelines_picture(report: StudyReport) -> TimelinePicture | None:
    """Return the picture of a study; None if nothing was recorded and nothing can be simulated."""
    winner = report.summary.winner
    stock, ours = report.folder.stock_timeline, report.folder.winner_timeline
    is_divided = report.bundle is not None and bool(report.bundle.strategy.stages)
    # The picture of a plan with stages shows its passes.
    has_ours = winner.beats_stock_ddp and not is_divided
    files = {"stock DDP": stock, **({winner.name: ours} if has_ours else {})}
    recorded = [NamedTimeline(name=name, rank=rank) for name, path in files.items() if (rank := _first_rank(path))]
    if len(recorded) == len(files):
        return _picture(recorded, report, "recorded after the proof")
    simulated = _simulated(report, has_ours=has_ours)
    return _picture(simulated, report, "as the timeline simulator plays it") if simulated else None


def _first_rank(path: Path) -> RankTrace | None:
    """Return the first rank of a timeline; None where there is no file that can be read."""
    try:
        return read_trace(path)[0] if path.is_file() else None
    except InputError:
        return None


def _simulated(report: StudyReport, *, has_ours: bool) -> list[NamedTimeline]:
    bundle, winner = report.bundle, report.summary.winner
    if bundle is None or _is_large(bundle):
        return []
    stock = default_as_strategy(bundle.model, bundle.cluster).strategy
    if stock is None:
        return []
    found = [_simulation(bundle, stock, "stock DDP")]
    return [*found, _simulation(bundle, bundle.strategy, winner.name)] if has_ours else found


def _is_large(bundle: Bundle) -> bool:
    num_ranks = len(bundle.cluster.ranks)
    return num_ranks > MOST_RANKS or num_ranks * len(bundle.model.variables) > LARGE


def _simulation(bundle: Bundle, strategy: Strategy, name: str) -> NamedTimeline:
    ranks = ranks_of(TimelineSimulator(bundle.model, bundle.cluster).trace(strategy))
    return NamedTimeline(name=name, rank=ranks[0])


def _picture(timelines: list[NamedTimeline], report: StudyReport, how: str) -> TimelinePicture:
    names = " above one of ".join(one.name for one in timelines)
    where = f"{report.summary.model} on {report.summary.cluster}"
    drawn = paired_steps_picture(timelines, title=f"A step of {names}", subtitle=f"{where}; the first rank, {how}")
    return TimelinePicture(svg=drawn, caption=f"A step of {names}, on the first rank, {how}.")
