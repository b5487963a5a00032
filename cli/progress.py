"""Progress on stderr: lines that stay and, on a terminal, one line about the current work.

No thread draws it: a spinner would take processor time from the ranks whose steps are measured.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Self, TextIO

from autosync.errors import printable

if TYPE_CHECKING:
    from autosync.search.progress import SearchStatus

_CLEAR = "\r\x1b[K"


class Reporter:
    """Reports progress to the user; see `autosync.search.progress`.

    If stderr is not a terminal, every report is a line.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self.redraws = self._stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def note(self, text: str) -> None:
        self.clear()
        print(printable(text), file=self._stream, flush=True)

    def now(self, text: str) -> None:
        if not self.redraws:
            self.note(text)
            return
        # A line that wraps could not be erased.
        width = shutil.get_terminal_size().columns - 1
        shown = text if len(text) <= width else text[: width - 1] + "…"
        self._stream.write(f"{_CLEAR}{printable(shown)}")
        self._stream.flush()

    def tried(self, status: SearchStatus, number: int) -> None:
        self.note(status.outcome(number))

    def clear(self) -> None:
        """Erase the line about the current work."""
        if self.redraws:
            self._stream.write(_CLEAR)
            self._stream.flush()
