"""The limit of mistakes in a file that is read record by record.

A damaged record is one mistake among thousands of records. A file that holds something else is given up after its first
hundred mistakes, however long it is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from autosync.errors import DocumentError, Problem, first_problems

Reject = Callable[[DocumentError], None]
"""Handles an entry that is not a record. If it returns, the next entry is read."""

MAX_MISTAKES = 100


class MistakeLimit:
    """Counts the records and mistakes of one file or folder, and ends the reading if most entries are mistakes."""

    def __init__(self, path: Path, reject: Reject) -> None:
        self._path = path
        self._reject = reject
        self._num_records = 0
        self._num_mistakes = 0
        self._first: list[Problem] = []

    def count_record(self) -> None:
        """Count a record."""
        self._num_records += 1

    def reject(self, error: DocumentError) -> None:
        """Pass on the error of an entry; raise a DocumentError if there were too many."""
        self._reject(error)
        self._num_mistakes += len(error.problems)
        if len(self._first) < MAX_MISTAKES:
            self._first += error.problems
        if self._num_mistakes >= MAX_MISTAKES and self._num_mistakes > self._num_records:
            what = f"and more: stopped after {self._num_mistakes} mistakes and {self._num_records} records"
            line = error.problems[-1].line
            stop = Problem(what=what, rule="most of it is records", file=str(self._path), line=line)
            raise DocumentError([*first_problems(self._first), stop])
