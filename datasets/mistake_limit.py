"""What a file holds that is read record by record: how much of it is none.

A record that was damaged is one mistake among thousands of records. A file that holds something else is given up after
its first hundred mistakes, however long it is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from autosync.errors import DocumentError, Problem, first_problems

Reject = Callable[[DocumentError], None]
"""What becomes of something that is no record; where it returns, the next one is read."""

MAX_MISTAKES = 100


class MistakeLimit:
    """Counts the records and the mistakes of one file or folder, and ends the reading where mistakes prevail."""

    def __init__(self, path: Path, reject: Reject) -> None:
        self._path = path
        self._reject = reject
        self._num_records = 0
        self._num_mistakes = 0
        self._first: list[Problem] = []

    def count_record(self) -> None:
        """One more record was read."""
        self._num_records += 1

    def reject(self, error: DocumentError) -> None:
        """Hand on something that is no record; a DocumentError where there were too many."""
        self._reject(error)
        self._num_mistakes += len(error.problems)
        if len(self._first) < MAX_MISTAKES:
            self._first += error.problems
        if self._num_mistakes >= MAX_MISTAKES and self._num_mistakes > self._num_records:
            what = f"and more: stopped after {self._num_mistakes} mistakes and {self._num_records} records"
            line = error.problems[-1].line
            stop = Problem(what=what, rule="most of it is records", file=str(self._path), line=line)
            raise DocumentError([*first_problems(self._first), stop])
