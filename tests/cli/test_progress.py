"""Progress is one redrawn line on a terminal; elsewhere every report is a line."""

import io
import os
import shutil

import pytest

from autosync.cli.progress import Reporter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _of_thirty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((30, 24)))


def _report(stream: io.StringIO) -> str:
    with Reporter(stream) as progress:
        progress.note("profiling")
        progress.now("trying this")
        progress.now("trying something that is longer than thirty columns")
        progress.note("trial 1: fine")
        progress.now("trying that")
    return stream.getvalue()


def _shown(written: str) -> list[str]:
    """The lines that a terminal of any width has in the end."""
    lines = [""]
    for part in written.replace("\r\x1b[K", "\0").split("\n"):
        lines[-1] = part.rpartition("\0")[2] if "\0" in part else lines[-1] + part
        lines.append("")
    return lines[:-1]


def test_elsewhere_everything_is_a_line() -> None:
    assert _report(io.StringIO()).splitlines() == [
        "profiling",
        "trying this",
        "trying something that is longer than thirty columns",
        "trial 1: fine",
        "trying that",
    ]


def test_on_a_terminal_only_what_came_out_stays() -> None:
    written = _report(Terminal())
    assert _shown(written) == ["profiling", "trial 1: fine", ""]
    assert "\x1b[Ktrying this\r" in written


def test_no_line_wraps() -> None:
    parts = _report(Terminal()).replace("\n", "\r\x1b[K").split("\r\x1b[K")
    assert max(map(len, parts)) == 29
    assert "trying something that is lon…" in parts


def test_a_terminal_that_cannot_redraw_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in _report(Terminal())


def test_it_is_told_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter() as progress:
        progress.now("trying this")
    assert capsys.readouterr() == ("", "trying this\n")
