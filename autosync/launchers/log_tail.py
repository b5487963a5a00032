"""Shows the output of ranks while they run: each line with its node and rank.

torch warns about every address without a name, such as those of a testbed. These lines stay in the logs and are not
shown: they say nothing about the training, and would be the first lines that a user sees.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from autosync.disk_errors import full_disk_note
from autosync.launchers.request import Process

_LINE_END = re.compile(rb"\r\n|\n|\r")
_NAMELESS_ADDRESS = re.compile(rb"\[W\S+ [\d:.]+ socket\.cpp:\d+\] \[c10d\] The .* cannot be retrieved")
_CHUNK_BYTES = 1 << 18
MAX_LINE_BYTES = 1 << 16
"""Longer lines are shown in pieces."""


class LogTail:
    """Follows the logs of a launch. Lines of one rank stay in order; lines of several ranks mix."""

    def __init__(self, processes: Sequence[Process], show: Callable[[str], None]) -> None:
        self._show = show
        self._logs = [_Log(process, prefix) for process, prefix in zip(processes, _prefixes(processes), strict=True)]

    def poll(self) -> None:
        """Show the new complete lines of all logs."""
        for log in self._logs:
            for text in log.lines():
                self._show(text)

    def finish(self) -> None:
        """Show the remaining output, after all ranks have ended."""
        self.poll()
        for log in self._logs:
            for text in log.rest():
                self._show(text)


class _Log:
    def __init__(self, process: Process, prefix: str) -> None:
        self._path = process.log
        self._prefix = prefix
        self._offset = 0
        self._buffer = b""

    def lines(self) -> list[str]:
        found: list[str] = []
        while data := self._read():
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
                data = os.pread(file.fileno(), _CHUNK_BYTES, self._offset)
        except FileNotFoundError:
            return b""
        if data.endswith(b"\r") and len(data) > 1:
            data = data[:-1]
        self._offset += len(data)
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
