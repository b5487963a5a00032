"""Launches through minders whose machines take their time to be reached."""

from __future__ import annotations

import shlex
import sys
import threading
import time
from pathlib import Path

import pytest

from autosync.errors import OperationError
from autosync.launchers import line, minded
from autosync.launchers.request import LaunchRequest, Process


def _reached_after(seconds: float) -> tuple[str, ...]:
    return ("sh", "-c", f"sleep {seconds}; exec {shlex.join(line.boot_command(sys.executable))}")


def _request(logs: Path, reaches: list[tuple[str, ...]], *, folder: str | None = None) -> LaunchRequest:
    processes = [
        Process(rank=rank, node=f"n{rank}", host=f"h{rank}", command=("true",), log=logs / f"{rank}.log", reach=reach)
        for rank, reach in enumerate(reaches)
    ]
    return LaunchRequest(processes=tuple(processes), minded=True, folder=folder)


def test_why_nothing_starts_is_told_though_others_were_there_long_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever is there early answers many pings before the last one is reached.
    monkeypatch.setattr(line, "PING_SECONDS", 0.01)
    request = _request(tmp_path, [_reached_after(0), _reached_after(1)], folder="/no/such/folder")
    with pytest.raises(OperationError, match="rank 0 on n0 could not be started: there is no folder /no/such/folder"):
        minded.start(request)


def test_hosts_that_are_not_reached_cost_no_time_each_and_leave_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    gone = [("sh", "-c", f"echo host {rank} is gone >&2; exit 255") for rank in range(6)]
    with pytest.raises(OperationError, match=r"n0 \(h0\): host 0 is gone; n1 \(h1\): host 1 is gone; "):
        minded.start(_request(tmp_path, gone))
    deadline = time.monotonic() + 5
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before
