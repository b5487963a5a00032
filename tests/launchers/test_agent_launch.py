"""Launches through agents on machines that are slow to reach."""

from __future__ import annotations

import shlex
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from autosync.errors import OperationError
from autosync.launchers import agent_launch, agent_link
from autosync.launchers.request import LaunchRequest, Process


def _reached_after(seconds: float) -> tuple[str, ...]:
    return ("sh", "-c", f"sleep {seconds}; exec {shlex.join(agent_link.boot_command(sys.executable))}")


def _request(logs: Path, reaches: list[tuple[str, ...]], *, folder: str | None = None) -> LaunchRequest:
    processes = [
        Process(rank=rank, node=f"n{rank}", host=f"h{rank}", command=("true",), log=logs / f"{rank}.log", reach=reach)
        for rank, reach in enumerate(reaches)
    ]
    return LaunchRequest(processes=tuple(processes), has_agents=True, folder=folder)


def test_why_nothing_starts_is_told_though_others_were_there_long_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever is there early answers many pings before the last one is reached.
    monkeypatch.setattr(agent_link, "PING_SECONDS", 0.01)
    request = _request(tmp_path, [_reached_after(0), _reached_after(1)], folder="/no/such/folder")
    with pytest.raises(OperationError, match="rank 0 on n0 could not be started: there is no folder /no/such/folder"):
        agent_launch.start(request)


def test_hosts_that_are_not_reached_cost_no_time_each_and_leave_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    gone = [("sh", "-c", f"echo host {rank} is gone >&2; exit 255") for rank in range(6)]
    with pytest.raises(OperationError, match=r"n0 \(h0\): host 0 is gone; n1 \(h1\): host 1 is gone; "):
        agent_launch.start(_request(tmp_path, gone))
    deadline = time.monotonic() + 5
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before


HOSTILE = """
import os, struct, sys, time
HEAD = struct.Struct(">BII")
HELLO, OUTPUT, CONTROL, EXIT, FAULT, PONG, TOLD = 11, 12, 3, 13, 14, 15, 16

def say(kind, slot=0, payload=b""):
    os.write(1, HEAD.pack(kind, slot, len(payload)) + payload)

def heard(size):
    data = b""
    while len(data) < size:
        data += os.read(0, size - len(data)) or sys.exit()
    return data

say(HELLO, 0, b"{}")
while os.read(0, 1) != b"\\n":
    pass
while True:
    kind, slot, length = HEAD.unpack(heard(HEAD.size))
    heard(length)
    if kind == 5:
        say(PONG, slot)
        break
"""


def _hostile(acts: str, signal: Path) -> tuple[str, ...]:
    """What is reached does as an agent does, until a file is there; then it acts as it should not."""
    wait = f"while not os.path.exists({str(signal)!r}):\n    time.sleep(0.01)"
    return (sys.executable, "-I", "-S", "-c", f"{HOSTILE}\n{wait}\n{acts}\ntime.sleep(60)")


@pytest.mark.parametrize(
    ("acts", "words"),
    [
        ("say(EXIT, 0, b'0')", "it speaks for rank 0 on n0, which does not run there"),
        ("say(OUTPUT, 0, b'I am rank 0')", "it speaks for rank 0 on n0, which does not run there"),
        ("say(CONTROL, 0, b'!')", "it speaks for rank 0 on n0, which does not run there"),
        ("say(FAULT, 0, b'no')", "it speaks for rank 0 on n0, which does not run there"),
        ("say(OUTPUT, 7, b'I am no rank')", "it speaks for a process 7, which does not exist"),
        ("say(FAULT, 1, b'no'); say(EXIT, 1, b'0')", "it tells twice how rank 1 on n1 ended"),
        ("say(EXIT, 1, b'9' * 5000)", "an exit code out of range"),
        ("say(EXIT, 1, b'zero')", "an exit code out of range"),
        ("say(TOLD, 0, b'0')", "a signal out of range"),
        ("say(OUTPUT, 1, b'')", "output of no bytes"),
        ("say(PONG, 1)", "a PONG 1 that was not asked for"),
        ("say(HELLO, 0, b'{}')", "kind 11, about process 0: '{}'"),
        ("say(77, 0, b'what')", "kind 77, about process 0: 'what'"),
        ("os.write(1, HEAD.pack(OUTPUT, 1, 2**31))", "a frame of 2147483648 bytes (at most 65536)"),
    ],
)
def test_a_machine_speaks_for_itself_and_no_more_than_it_may(acts: str, words: str, tmp_path: Path) -> None:
    request = _request(tmp_path, [_reached_after(0), _hostile(acts, tmp_path / "go")])
    slow = replace(request.processes[0], command=("sleep", "60"))
    launch = agent_launch.start(replace(request, processes=(slow, request.processes[1])))
    try:
        (tmp_path / "go").touch()
        deadline = time.monotonic() + 20
        while 1 not in launch.lost() and "twice" not in words and time.monotonic() < deadline:
            time.sleep(0.01)
        while "twice" in words and not launch._links[request.processes[1].reach].is_over:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        told = launch._links[request.processes[1].reach].why_ended
        assert told == f"it broke the agent protocol: {words}"
        assert "twice" in words or launch.lost() == {1: f"n1 (h1): {told}"}
        # The other's rank goes on, and its log is its own.
        assert launch.exit_codes()[0] is None
        assert (tmp_path / "0.log").read_text() == ""
    finally:
        launch.stop()


def _printing(shell: str) -> tuple[str, ...]:
    return ("sh", "-c", f"{shell}; exec {shlex.join(agent_link.boot_command(sys.executable))}")


@pytest.mark.parametrize(
    ("shell", "told"),
    [
        ("echo Welcome to n0", "'Welcome to n0'. That"),
        (
            "printf 'Permission denied, as a joke\\nsecond line\\n'",
            "'Permission denied, as a joke'; 'second line'. That",
        ),
        ("seq 1 40", "'1'; '2'; '3'; '4'; '5'; and 35 lines more. That"),
        ("printf '\\033[31mred\\007'", "'?[31mred?'. That"),
        ("head -c 100000 /dev/zero", "'????"),
        ("printf x", "'x'. That"),
    ],
)
def test_a_shell_that_prints_is_told_with_what_it_printed(shell: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(OperationError) as raised:
        agent_launch.start(
            _request(tmp_path, [_printing(shell)]), explain=lambda _, said: f"this is what a command said: {said}"
        )
    words = str(raised.value)
    assert words.startswith(f"n0 (h0): the shell there prints before it runs a command: {told}")
    assert words.endswith("(in ~/.bashrc before the first output: [[ $- == *i* ]] || return)")
