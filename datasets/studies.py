"""Study folders: how they are found, and how their records are read.

A study's trials are in its Optuna journal, each with its record as an attribute, and everything else is rebuilt from
there. So a study can be read while it runs, and after a crash.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from autosync import jsonio
from autosync.datasets.schema import RECORD_ATTRIBUTE, SCHEMA_KIND, SCHEMA_VERSION, Record, record_from_plain
from autosync.disk_errors import open_input
from autosync.documents import MAX_BYTES
from autosync.errors import DocumentError, InputError, Problem, UnknownNameError, first_problems
from autosync.near_files import near_path_hint
from autosync.specs.consent import FileAction, storage_actions

if TYPE_CHECKING:
    from autosync.datasets.journal import Journal

STUDIES_FOLDER = "autosync-studies"
STUDY_FILE = "study.json"
JOURNAL_FILE = "journal.log"
MODEL_FILE = "model.yaml"
CLUSTER_FILE = "cluster.yaml"

Report = Callable[[Problem], None]


def find_study(name: str, *, inside: Path | str = STUDIES_FOLDER) -> Path:
    """Return the study folder for a path, or for the name of a folder among the studies."""
    path = Path(name)
    if path.exists() or len(path.parts) > 1:
        return path
    known = {folder.name: folder for folder in find_studies(inside)}
    if name not in known:
        raise UnknownNameError("study", name, known)
    return known[name]


def find_studies(inside: Path | str = STUDIES_FOLDER) -> list[Path]:
    """Return the study folders inside a folder, by name: those with a journal, and those with a shared storage."""
    if not Path(inside).is_dir():
        return []
    return sorted(folder for folder in Path(inside).iterdir() if (folder / JOURNAL_FILE).is_file() or _shared(folder))


def _shared(folder: Path) -> tuple[str, str] | None:
    """Return the URL (without a password) and the study's name of a shared storage; None for a study with its own."""
    try:
        with open_input(folder / STUDY_FILE) as file:
            settings = jsonio.parse(file.read(MAX_BYTES))
    except (OSError, ValueError):
        return None
    if not isinstance(settings, dict):
        return None
    url, name = settings.get("storage"), settings.get("name", folder.absolute().name)
    return (url, name) if isinstance(url, str) and isinstance(name, str) else None


def is_study(folder: Path) -> bool:
    """Return whether a folder has a journal or the settings of a study."""
    return (folder / JOURNAL_FILE).is_file() or (folder / STUDY_FILE).is_file()


def storage_named(folder: Path | str) -> list[FileAction]:
    """Return the action of contacting the shared storage that reading this study needs; none without one."""
    path = Path(folder)
    shared = None if (path / JOURNAL_FILE).is_file() else _shared(path)
    return [] if shared is None else storage_actions(shared[0], file=str(path / STUDY_FILE), is_written=False)


def read_study(folder: Path | str, *, report: Report | None = None) -> Iterator[Record]:
    """Yield the records of a study folder, in the order of its trials.

    Problems go to `report`: a finished trial without a record, an unreadable record, and a journal whose end is cut
    off. Without `report`, all of them are raised after the last readable record.
    """
    # Loading Optuna takes a second.
    from autosync.datasets.journal import read_journal, read_shared
    from autosync.datasets.storage import journal_of

    path = Path(folder)
    shared = _shared(path)
    if shared is None or (path / JOURNAL_FILE).is_file():
        _check_folder(path)
        return _records(read_journal(path / JOURNAL_FILE), path / JOURNAL_FILE, report)
    url, name = shared
    journal = journal_of(url)
    if journal is None:
        return _records(read_shared(url, name), path / STUDY_FILE, report)
    if not journal.is_file():
        raise InputError(f"{journal} is not there", rule=f"{path / STUDY_FILE} says that the study's trials are in it")
    return _records(read_journal(journal, study=name), journal, report)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "there is no such folder"
        raise InputError(f"{folder}: {what}", rule="a study is a folder", hint=near_path_hint(folder))
    missing = [name for name in (STUDY_FILE, JOURNAL_FILE) if not (folder / name).is_file()]
    if missing:
        what = f"{folder} is no study: {' and '.join(missing)} missing"
        raise InputError(what, rule=f"a study folder holds {STUDY_FILE} and {JOURNAL_FILE}")


def _records(journal: Journal, path: Path, report: Report | None) -> Iterator[Record]:
    problems: list[Problem] = []
    tell = problems.append if report is None else report
    for trial in journal.trials:
        place = (trial.study, "trials", trial.number)
        if trial.record is not None:
            try:
                record = record_from_plain(trial.record, file=str(path), line=trial.line)
            except DocumentError as error:
                for problem in error.problems:
                    tell(dataclasses.replace(problem, path=(*place, RECORD_ATTRIBUTE, *problem.path)))
            else:
                yield record
        elif trial.is_finished:
            rule = f"a finished trial has an attribute {RECORD_ATTRIBUTE}: autosync.{SCHEMA_KIND}/{SCHEMA_VERSION}"
            tell(Problem(what="has no record", rule=rule, path=place, file=str(path), line=trial.line))
    for problem in _torn(journal, path):
        tell(problem)
    if problems:
        raise DocumentError(first_problems(problems))


def _torn(journal: Journal, path: Path) -> Iterator[Problem]:
    if journal.torn_line:
        yield Problem(
            what="the last line breaks off; whatever it said of a trial is not there",
            rule="every line of a journal ends",
            hint="the study was stopped while it wrote, or is writing now",
            file=str(path),
            line=journal.torn_line,
        )
