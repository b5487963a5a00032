"""Studies and results that a benchmark keeps in its working folder.

A finished one is read, and an interrupted study continues.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autosync import jsonio
from autosync.datasets.studies import STUDIES_FOLDER
from autosync.errors import InputError
from autosync.search.operands import ClusterOperand, ModelOperand
from autosync.search.progress import SilentListener
from autosync.search.proposers.interface import Ground, Proposer
from autosync.search.study_folder import StudyFolder, read_settings
from autosync.search.tune import tune
from benchmarks.shared import tell

_RULE = "what is in the folder was measured as is asked for now"


def kept_study(
    name: str,
    *,
    model: ModelOperand,
    cluster: ClusterOperand,
    num_trials: int | None,
    budget_seconds: float | None = None,
    proposer: Callable[[Ground], Proposer] | None = None,
    **settings: Any,
) -> Mapping[str, Any]:
    """Return the summary of a study of this name with its folder, which must have been tuned with these settings.

    Without a number of trials, the study ends by itself. It must have been tuned with this proposer, too.
    """
    folder = Path(STUDIES_FOLDER) / name
    is_begun = (folder / "study.json").is_file()
    if is_begun:
        _refuse_others(StudyFolder(folder), {**settings, "num_trials": num_trials})
    if not (folder / "summary.json").is_file():
        began = time.monotonic()
        if is_begun:
            tune(resume=name, budget_seconds=budget_seconds, proposer=proposer, progress=_Lines())
        else:
            tune(
                model=model,
                cluster=cluster,
                num_trials=num_trials,
                budget_seconds=budget_seconds,
                study=name,
                proposer=proposer,
                **settings,
                progress=_Lines(),
            )
        tell(f"{name}: {time.monotonic() - began:.0f} s")
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return {**summary, "folder": str(folder)}


def kept_result(
    path: Path, measure: Callable[[], Mapping[str, Any]], *, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the result in a file, or measure it and keep it there. It must have been measured with these settings."""
    if not path.is_file():
        kept = {} if settings is None else {"settings": settings}
        jsonio.write_json(path, {**kept, **measure()})
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if settings is not None and result["settings"] != settings:
        raise InputError(f"{path} was measured with other options: {result['settings']}", rule=_RULE, hint="--folder")
    return result


def winner_of(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return how a study's proof measured its winner."""
    found: Mapping[str, Any] = next(one for one in summary["contests"] if one["name"] == summary["winner"]["name"])
    return found


def _refuse_others(folder: StudyFolder, settings: Mapping[str, Any]) -> None:
    """Refuse a study that was tuned with other options."""
    begun = read_settings(folder)
    asked = {key: value for key, value in settings.items() if value is not None}
    other = [key for key, value in asked.items() if getattr(begun, key) != value]
    if other:
        raise InputError(f"{folder.path} was tuned with another {' and '.join(other)}", rule=_RULE, hint="--folder")


class _Lines(SilentListener):
    """Progress on stderr, without the temporary lines."""

    def note(self, text: str) -> None:
        tell(text)
