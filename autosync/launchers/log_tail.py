"""Shows the output of ranks while they run: each line with its node and rank.

torch warns about every address without a name, such as those of a testbed. These lines stay in the logs and are not
shown: they say nothing about the training, and would be the first lines that a user sees. Names without an address are
another matter: torch's warning about them may be the only reason that a user sees.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from autosync.disk_errors import full_disk_note
from autosync.launchers.request import Process
from autosync.units import format_size

_LINE_END = re.compile(rb"\r\n|\n|\r")
_NAMELESS_ADDRESS = re.compile(rb"\[W\S+ [\d:.]+ socket\.cpp:\d+\] \[c10d\] The hostname of the .* cannot be retrieved")
_CHUNK_BYTES = 1 << 16
MAX_LINE_BYTES = 1 << 16
"""Longer lines are shown in pieces."""
MAX_POLL_BYTES = 1 << 20
"""About the most output that one poll shows, because signals have to wait meanwhile."""
MAX_LAST_BYTES = 1 << 24
"""The most output of a rank that is still shown when the user has asked for the end."""


class LogTail:
    """Follows the logs of a launch. Lines of one rank stay in order; lines of several ranks mix."""

    def __init__(self, processes: Sequence[Process], show: Callable[[str], None]) -> None:
        self._show = show
        self._logs = [_Log(process, prefix) for process, prefix in zip(processes, _prefixes(processes), strict=True)]

    def poll(self) -> bool:
        """Show new complete lines, a bounded part of each log; return whether a log has more of them already."""
        share = MAX_POLL_BYTES // max(len(self._logs), 1)
        is_behind = [self._show_lines(log, share) for log in self._logs]
        return any(is_behind)

    def finish(self, *, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """Show the remaining output, after all ranks have ended; once `is_hurried`, only the last part of each log."""
        for log in self._logs:
            # A process that a rank has left behind may go on writing.
            end, before = log.num_read + log.num_unread(), -1
            while before < log.num_read < end:
                if is_hurried() and end - log.num_read > MAX_LAST_BYTES:
                    self._show(log.skip(end - log.num_read - MAX_LAST_BYTES))
                before = log.num_read
                self._show_lines(log, MAX_POLL_BYTES)
            for text in log.rest():
                self._show(text)

    def _show_lines(self, log: _Log, num_bytes: int) -> bool:
        for text in log.lines(num_bytes):
            self._show(text)
        return log.is_behind


class _Log:
    def __init__(self, process: Process, prefix: str) -> None:
        self._path = process.log
        self._prefix = prefix
        self._buffer = b""
        self.num_read = 0
        self.is_behind = False
        """Whether the last call of `lines` has left output that was there already."""

    def num_unread(self) -> int:
        """Return how many bytes the log has beyond those that were read."""
        try:
            return self._path.stat().st_size - self.num_read
        except FileNotFoundError:
            return 0

    def skip(self, num_bytes: int) -> str:
        """Pass over the next bytes of the log, and return a line that says so."""
        self._buffer = b""
        self.num_read += num_bytes
        return f"{self._prefix}... {format_size(num_bytes)} not shown: {self._path} has everything"

    def lines(self, num_bytes: int) -> list[str]:
        """Return the complete lines of about the next `num_bytes`, and of no more than the log has now."""
        found: list[str] = []
        end = self.num_read + min(num_bytes, unread := self.num_unread())
        self.is_behind = unread > num_bytes
        while self.num_read < end and (data := self._read()):
            # A carriage return at the end may be half of a line end.
            *whole, self._buffer = _LINE_END.split(self._buffer + data)
            if len(self._buffer) > MAX_LINE_BYTES:
                whole.append(self._buffer)
                self._buffer = b""
            shown = (line for line in whole if _NAMELESS_ADDRESS.match(line) is None)
            found += [self._prefix + line.decode("utf-8", "replace") for line in shown]
        return found

    def rest(self) -> list[str]:
        rest, self._buffer = self._buffer, b""
        return [self._prefix + rest.decode("utf-8", "replace")] if rest else []

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                data = os.pread(file.fileno(), _CHUNK_BYTES, self.num_read)
        except FileNotFoundError:
            return b""
        if data.endswith(b"\r") and len(data) > 1:
            data = data[:-1]
        self.num_read += len(data)
        return data


def _prefixes(processes: Sequence[Process]) -> list[str]:
    """Return the prefix of each process's lines, such as `n0 rank  3 | `, all padded to one width."""
    node_width = max((len(process.node or process.host) for process in processes), default=0)
    rank_width = max((len(str(process.rank)) for process in processes), default=0)
    return [
        f"{process.node or process.host:<{node_width}} rank {process.rank:>{rank_width}} | " for process in processes
    ]


def last_words(log: Path) -> str:
    """Return the end of an error message about a process: the last line of its log, and a note if the disk is full."""
    line = last_line(log)
    return (f": {line}" if line else "") + full_disk_note(log)


def last_line(log: Path) -> str:
    """Return the last line of a log, shortened; empty if the log cannot be read."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MAX_LINE_BYTES))
            lines = [line for line in _LINE_END.split(file.read()) if line.strip()]
    except OSError:
        return ""
    return lines[-1].decode("utf-8", "replace").strip()[:400] if lines else ""
