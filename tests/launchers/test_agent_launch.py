"""Launches through agents on machines that are slow to reach, many, too old, or hostile."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shlex
import socket
import sys
import threading
import time
from collections.abc import Iterator
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


DROPPED = "kex_exchange_identification: Connection closed by remote host"


def _dropped(folder: Path, times: int) -> tuple[str, ...]:
    """What reaches a node through a server that drops the first connections."""
    reach = shlex.join(_reached_after(0))
    count = f"n=$(cat {folder}/n 2>/dev/null || echo 0); echo $((n + 1)) > {folder}/n"
    return ("sh", "-c", f'{count}; [ $n -ge {times} ] && exec {reach}; echo "{DROPPED}" >&2; exit 255')


def test_a_node_whose_server_drops_connections_for_now_is_reached_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_launch, "_PAUSE_SECONDS", (0.01, 0.05))
    request = _request(tmp_path, [_reached_after(0), _dropped(tmp_path, 3)])
    launch = agent_launch.start(request, is_put_off=lambda said: said == DROPPED)
    try:
        deadline = time.monotonic() + 20
        while None in launch.exit_codes():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert launch.exit_codes() == [0, 0]
        assert launch.lost() == {}
    finally:
        launch.stop()
    assert (tmp_path / "n").read_text() == "4\n"


def test_a_server_that_drops_all_connections_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_launch, "_PAUSE_SECONDS", (0.01, 0.05))
    monkeypatch.setattr(agent_link, "START_SECONDS", 1.0)
    with pytest.raises(OperationError, match=r"n1 \(h1\): (kex_|no answer within 1 s)"):
        agent_launch.start(
            _request(tmp_path, [_reached_after(0), _dropped(tmp_path, 1000)]), is_put_off=lambda said: said == DROPPED
        )
    assert int((tmp_path / "n").read_text()) > 2


def test_of_a_node_that_is_not_there_in_time_it_is_told_what_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_link, "START_SECONDS", 0.5)
    waits = ("sh", "-c", "echo 'srun: Job 7 step creation temporarily disabled,' >&2; echo retrying >&2; sleep 60")
    with pytest.raises(OperationError) as raised:
        agent_launch.start(_request(tmp_path, [waits]))
    told = "no answer within 0.5 s: srun: Job 7 step creation temporarily disabled, retrying"
    assert str(raised.value) == f"n0 (h0): {told}"


def test_a_python_that_is_too_old_is_named_before_anything_runs(tmp_path: Path) -> None:
    hello = 'import os, struct, time; text = b\'{{"python": "{}"}}\''
    says = "os.write(1, struct.pack('>BII', 11, 0, len(text)) + text); time.sleep(60)"
    versions = ("3.10.12", "3.11.2", "3.10.12", "2.7.18")
    reaches = [(sys.executable, "-I", "-c", f"{hello.format(one)}; {says} #{i}") for i, one in enumerate(versions)]
    request = _request(tmp_path, reaches)
    command = ("/usr/bin/python3", "-P", "-m", "autosync.run", "train.py")
    with pytest.raises(OperationError) as raised:
        agent_launch.start(
            replace(request, processes=tuple(replace(process, command=command) for process in request.processes))
        )
    needed = "autosync needs 3.11 or later"
    assert str(raised.value) == (
        f"n0 (h0), n2 (h2): /usr/bin/python3 is Python 3.10.12; {needed}; "
        f"n3 (h3): /usr/bin/python3 is Python 2.7.18; {needed}"
    )


@contextlib.contextmanager
def _open_files_at_most(number: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < number:
        pytest.skip(f"no process here can have {number} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_many_open_files_are_no_hindrance(tmp_path: Path) -> None:
    """`select.select` takes no descriptor above 1023."""
    with _open_files_at_most(2000), contextlib.ExitStack() as stack:
        for _ in range(1100):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        agent_launch.start(_request(tmp_path, [_reached_after(0)])).stop()


def test_a_launch_on_many_nodes_may_have_the_files_that_it_needs(tmp_path: Path) -> None:
    with _open_files_at_most(len(list(Path("/proc/self/fd").iterdir())) + 20):
        agent_launch.start(_request(tmp_path, [_reached_after(number / 1000) for number in range(8)])).stop()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 500


def test_that_this_machine_has_too_many_open_files_is_told_of_the_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_address: str) -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(agent_launch, "connection_to", refuse)
    request = _request(tmp_path, [_reached_after(0)])
    knock = "import os, socket; link = socket.socket(fileno=int(os.environ['AUTOSYNC_CONTROL_DESCRIPTOR']));"
    knocks = replace(request.processes[0], command=(sys.executable, "-c", f"{knock} link.sendall(b'!'); link.recv(1)"))
    launch = agent_launch.start(replace(request, processes=(knocks,), control="tcp:127.0.0.1:1"))
    try:
        deadline = time.monotonic() + 20
        while not launch.lost():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        told = launch.lost()[0]
    finally:
        launch.stop()
    assert told.startswith("rank 0 on n0: its connection cannot be taken: Too many open files (this process may have ")


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
