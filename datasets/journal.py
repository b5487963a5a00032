"""Reads a study's journal through Optuna: its trials, and the lines of their records.

Optuna replays the operations of a journal and decides the state of each trial. It reads the lines through this module
rather than its own file backend, which would ignore a line that is cut off and could not say which line is broken.
Importing this module imports Optuna.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from optuna import get_all_study_names
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import FrozenTrial

from autosync import jsonio
from autosync.datasets.schema import RECORD_ATTRIBUTE, WITHDRAWN_ATTRIBUTE
from autosync.datasets.storage import REPLAY_ERRORS, close_storage, not_understood, open_storage, without_password
from autosync.datasets.storage_files import SIZE_RULE, is_too_large
from autosync.disk_errors import naming_file, open_input
from autosync.errors import DocumentError, InputError, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalTrial:
    """A trial as Optuna has it. `record` is the value of its record attribute; None if it has none.

    `line` is the record's line in a journal, and 0 for other storages.
    """

    study: str
    number: int
    is_finished: bool
    record: Any
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """The contents of a journal when it was read. `torn_line` is the number of a last line that is cut off, else 0."""

    trials: tuple[JournalTrial, ...]
    torn_line: int


def read_journal(path: Path, *, study: str | None = None) -> Journal:
    """Return the current trials of all studies in a journal, or of one study. This writes nothing and takes no lock."""
    backend = _ReadOnlyBackend(path)
    try:
        with naming_file(path):
            storage = JournalStorage(backend)
    except REPLAY_ERRORS as error:
        raise not_understood(path, backend.num_lines) from error
    trials: list[JournalTrial] = []
    for name in get_all_study_names(storage) if study is None else [_known(study, storage, str(path))]:
        study_id = storage.get_study_id_from_name(name)
        for trial in storage.get_all_trials(study_id, deepcopy=False):
            trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
            trials.append(_trial(name, trial, backend.line_of(trial_id)))
    return Journal(trials=tuple(trials), torn_line=backend.torn_line)


def read_shared(url: str, name: str) -> Journal:
    """Return the current trials of a study in a database. This writes nothing there."""
    storage = open_storage(url, is_new_allowed=False)
    try:
        known = _known(name, storage, without_password(url))
        trials = storage.get_all_trials(storage.get_study_id_from_name(known), deepcopy=False)
    finally:
        close_storage(storage)
    return Journal(trials=tuple(_trial(name, trial, 0) for trial in trials), torn_line=0)


def _known(study: str, storage: BaseStorage, place: str) -> str:
    if study not in get_all_study_names(storage):
        raise InputError(f"the storage {place} has no study {study}", rule="a study is in its storage")
    return study


def _trial(study: str, trial: FrozenTrial, line: int) -> JournalTrial:
    # Optuna does not check the attributes of a trial.
    told: Any = trial.user_attrs
    attributes = told if isinstance(told, dict) else {}
    return JournalTrial(
        study=study,
        number=trial.number,
        is_finished=trial.state.is_finished() and WITHDRAWN_ATTRIBUTE not in attributes,
        record=attributes.get(RECORD_ATTRIBUTE),
        line=line,
    )


class _ReadOnlyBackend(BaseJournalBackend):
    """A journal file, for reading once. Optuna asks again at every call but only sees the first reading."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.num_lines = 0
        self.torn_line = 0
        self._num_studies = 0
        self._record_lines: dict[int, int] = {}
        self._last_lines: dict[int, int] = {}

    def line_of(self, trial_id: int) -> int:
        """Return the line of a trial's record; without a record, the last line about the trial."""
        return self._record_lines.get(trial_id) or self._last_lines.get(trial_id, 1)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        if log_number_from:
            return
        with open_input(self._path) as file:
            for number, line in enumerate(jsonio.lines_of(file), start=1):
                if not line.endswith(b"\n"):
                    self.torn_line = number
                    return
                self.num_lines = number
                operation = _parse(line)
                self._num_studies += operation.get("op_code") == 0
                if is_too_large(number, self._num_studies):
                    problem = Problem(
                        what="the journal is too large", rule=SIZE_RULE, file=str(self._path), line=number
                    )
                    raise DocumentError([problem])
                if "trial_id" in operation:
                    self._last_lines[operation["trial_id"]] = number
                    if RECORD_ATTRIBUTE in operation.get("user_attr", ()):
                        self._record_lines[operation["trial_id"]] = number
                yield operation

    def append_logs(self, logs: list[dict[str, Any]]) -> NoReturn:
        raise AssertionError(f"{len(logs)} operations for a journal that is only read")


def _parse(line: bytes) -> dict[str, Any]:
    operation = jsonio.parse(line)
    if not isinstance(operation, dict):
        raise TypeError("no operation")
    return operation
