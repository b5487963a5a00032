"""Lists the studies in a folder with their results. It runs nothing, contacts nothing and writes nothing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autosync.datasets.studies import STUDIES_FOLDER, find_studies, read_study
from autosync.errors import AutosyncError
from autosync.search.shown_summary import ShownSummary, load_shown
from autosync.search.study_folder import StudyFolder, read_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class PastStudy:
    """A study of an earlier run.

    `num_trials` is None if the trials are in a storage elsewhere. `result` is the verdict in words, or the reason why
    there is no verdict. `changed` is the time of the last trial or verdict.
    """

    name: str
    folder: str
    model: str
    cluster: str
    state: Literal["proved", "not finished", "unreadable"]
    num_trials: int | None
    result: str
    speedup: float | None
    changed: str


def past_studies(inside: Path | str = STUDIES_FOLDER) -> list[PastStudy]:
    """Return the studies in a folder, the one that changed last at the end."""
    found = [_overview(StudyFolder(path)) for path in find_studies(inside)]
    return sorted(found, key=lambda one: (one.changed, one.name))


def _overview(folder: StudyFolder) -> PastStudy:
    try:
        return _proved(folder, load_shown(folder)) if folder.summary.is_file() else _unfinished(folder)
    except AutosyncError as error:
        words = str(error).partition("\n")[0]
        return _study(folder, model="", cluster="", state="unreadable", num_trials=None, result=words)


def _proved(folder: StudyFolder, found: ShownSummary) -> PastStudy:
    winner = found.winner
    ratio = winner.speedup_over_stock_ddp if winner.beats_stock_ddp else None
    result = "stock DDP stays"
    if ratio is not None:
        result = f"{ratio.value:.2f} times stock DDP ({ratio.low:.2f} to {ratio.high:.2f}): {winner.name}"
    return _study(
        folder,
        model=found.model,
        cluster=found.cluster,
        state="proved",
        num_trials=found.num_trials,
        result=result,
        speedup=None if ratio is None else ratio.value,
    )


def _unfinished(folder: StudyFolder) -> PastStudy:
    settings = read_settings(folder)
    is_here = settings.storage is None
    return _study(
        folder,
        model=settings.task,
        cluster=settings.cluster,
        state="not finished",
        num_trials=sum(1 for _ in read_study(folder.path, report=lambda _: None)) if is_here else None,
        result="not finished" if is_here else f"not finished; its trials are in {settings.storage}",
    )


def _study(
    folder: StudyFolder,
    *,
    model: str,
    cluster: str,
    state: Literal["proved", "not finished", "unreadable"],
    num_trials: int | None,
    result: str,
    speedup: float | None = None,
) -> PastStudy:
    newest = max(_times(folder), default=0.0)
    return PastStudy(
        name=folder.path.name,
        folder=str(folder.path),
        model=model,
        cluster=cluster,
        state=state,
        num_trials=num_trials,
        result=result,
        speedup=speedup,
        changed=dt.datetime.fromtimestamp(newest, tz=dt.UTC).isoformat(timespec="seconds"),
    )


def _times(folder: StudyFolder) -> Iterator[float]:
    for path in (folder.settings, folder.journal, folder.summary):
        try:
            yield path.stat().st_mtime
        except OSError:
            continue
