"""The output of ranks is shown in whole lines, each with its node and rank."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.launchers import log_tail
from autosync.launchers.log_tail import LogTail, last_line
from autosync.launchers.request import Process


def _process(folder: Path, rank: int, node: str = "n0") -> Process:
    return Process(rank=rank, node=node, host="h", command=("x",), log=folder / f"rank-{rank}.log")


def test_lines_are_shown_once_they_are_whole(tmp_path: Path) -> None:
    processes = (_process(tmp_path, 0), _process(tmp_path, 10, "node1"))
    shown: list[str] = []
    following = LogTail(processes, shown.append)
    following.poll()
    processes[0].log.write_text("a\nb")
    following.poll()
    assert shown == ["n0    rank  0 | a"]
    with processes[0].log.open("a") as log:
        log.write("c\n")
    processes[1].log.write_text("last")
    following.poll()
    following.finish()
    assert shown[1:] == ["n0    rank  0 | bc", "node1 rank 10 | last"]


def test_warnings_about_addresses_without_a_name_are_not_shown(tmp_path: Path) -> None:
    process = _process(tmp_path, 0)
    process.log.write_text(
        "[W1125 10:00:31.8212 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3\n"
        "[W1125 10:00:31.821232615 socket.cpp:755] [c10d] The IPv6 network addresses of (n1, 29500) cannot be retrieved"
        " (gai error: -2 - Name or service not known).\n"
        "[W1125 10:00:31.821232615 socket.cpp:764] [c10d] The client socket has failed to connect to n1:29500.\n"
        "[c10d] The user's own words cannot be retrieved\n"
        "step 0\n"
    )
    shown: list[str] = []
    LogTail((process,), shown.append).finish()
    assert [line.removeprefix("n0 rank 0 | ").split("] ")[-1] for line in shown] == [
        # It may be all that torch says of a name without an address.
        "The IPv6 network addresses of (n1, 29500) cannot be retrieved (gai error: -2 - Name or service not known).",
        "The client socket has failed to connect to n1:29500.",
        "The user's own words cannot be retrieved",
        "step 0",
    ]
    assert len(process.log.read_text().splitlines()) == 5


def test_a_rank_that_prints_without_end_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = _process(tmp_path, 0)
    process.log.write_text("first\n")
    read = os.pread

    def read_while_it_prints(descriptor: int, num_bytes: int, place: int) -> bytes:
        with process.log.open("a") as log:
            log.write("more\n")
        return read(descriptor, num_bytes, place)

    monkeypatch.setattr(os, "pread", read_while_it_prints)
    shown: list[str] = []
    following = LogTail((process,), shown.append)
    assert not following.poll()
    following.finish()
    assert 2 <= len(shown) < 10


def test_a_poll_shows_a_bounded_part_and_the_next_one_goes_on(tmp_path: Path) -> None:
    process = _process(tmp_path, 0)
    lines = [f"line {number:06}" for number in range(3 * log_tail.MAX_POLL_BYTES // 12)]
    process.log.write_text("\n".join(lines))
    shown: list[str] = []
    following = LogTail((process,), shown.append)
    assert following.poll()
    assert len(lines) // 4 < len(shown) < len(lines) // 2
    following.finish()
    assert [line.removeprefix("n0 rank 0 | ") for line in shown] == lines


def test_of_long_logs_a_hurried_end_shows_the_last_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_tail, "MAX_LAST_BYTES", 10)
    process = _process(tmp_path, 0)
    process.log.write_text("1\n2\n3\n4\n5\n6\n7\n8\n9\nKeyboardInterrupt\n"[-30:])
    shown: list[str] = []
    LogTail((process,), shown.append).finish(is_hurried=lambda: True)
    assert shown == [f"n0 rank 0 | ... 20 B not shown: {process.log} has everything", "n0 rank 0 | Interrupt"]


def test_a_progress_bar_is_lines(tmp_path: Path) -> None:
    process = _process(tmp_path, 0)
    shown: list[str] = []
    following = LogTail((process,), shown.append)
    for piece in (b"10 %\r", b"20 %\r", b"done\r\n"):
        with process.log.open("ab") as log:
            log.write(piece)
        following.poll()
    following.finish()
    assert [line.removeprefix("n0 rank 0 | ") for line in shown] == ["10 %", "20 %", "done"]


@given(pieces=st.lists(st.text(alphabet="ab\n", max_size=8), max_size=8))
def test_nothing_is_lost_however_it_is_written(tmp_path_factory: object, pieces: list[str]) -> None:
    folder = tmp_path_factory.mktemp("tail")  # type: ignore[attr-defined]
    process = _process(folder, 0)
    shown: list[str] = []
    following = LogTail((process,), shown.append)
    for piece in pieces:
        with process.log.open("a") as log:
            log.write(piece)
        following.poll()
    following.finish()
    assert [line.removeprefix("n0 rank 0 | ") for line in shown] == "".join(pieces).splitlines()


def test_a_line_without_end_is_shown_in_pieces(tmp_path: Path) -> None:
    process = _process(tmp_path, 0)
    process.log.write_bytes(b"x" * (log_tail.MAX_LINE_BYTES + 1))
    shown: list[str] = []
    LogTail((process,), shown.append).poll()
    assert len(shown) == 1


def test_the_last_line_is_one_with_words(tmp_path: Path) -> None:
    process = _process(tmp_path, 0)
    assert last_line(process.log) == ""
    process.log.write_text("first\nOSError: no\n\n  \n")
    assert last_line(process.log) == "OSError: no"
