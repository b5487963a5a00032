"""Machines that an allocation holder keeps, here this machine: its relay, its messages, and that it ends."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from autosync.errors import OperationError
from autosync.launchers import ray_actor
from autosync.launchers.agent_launch import AgentLaunch
from autosync.launchers.agent_link import MAX_SAID_BYTES, boot_command
from autosync.launchers.allocation import Allocation, start_held
from autosync.launchers.environment import command_processes
from autosync.launchers.ray_actor import RayActor
from autosync.launchers.request import LaunchRequest
from autosync.launchers.shared_resources import SharedResources
from autosync.specs.cluster import ClusterSpec, Node

_node = partial(Node, bandwidth_out=1e8, bandwidth_in=1e8)
CLUSTER = ClusterSpec(name="c", nodes=(_node(name="a", host="h0"), _node(name="b", host="h1")), launcher="ray")

# What the holders of Ray and Kubernetes do by their libraries' means, done by processes of this machine.
HOLDER = """
import contextlib, os, signal, subprocess, sys, time
from pathlib import Path
from autosync.launchers import allocation_holder
from autosync.launchers.allocation_holder import AllocationError

class HeldMachines:
    def __init__(self, request):
        self.request = request
    def addresses(self):
        return self.request["addresses"]
    def open(self, position):
        if position == self.request.get("broken"):
            raise AllocationError("it is broken")
        return AgentStream(self.request["command"])

class AgentStream:
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=-1, stdout=-1, bufsize=0)
    def read(self):
        return os.read(self.process.stdout.fileno(), 1 << 16)
    def write(self, data):
        with contextlib.suppress(OSError):
            self.process.stdin.write(data)
    def close(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()
    def last_words(self):
        return "last words"

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)

@contextlib.contextmanager
def hold(request, note):
    print("a library that prints", flush=True)
    if "error" in request:
        raise AllocationError(request["error"])
    if "crash" in request:
        raise ValueError(request["crash"])
    note("waiting for machines")
    Path(request["mark"]).write_text("held")
    try:
        if "forever" in request:
            time.sleep(600)
        if "finalizer" in request:
            Finalized()
            time.sleep(600)
        yield HeldMachines(request)
    finally:
        Path(request["mark"]).write_text("given back")

allocation_holder.run(hold)
"""


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Allocation]]:
    """Makes a holder of this machine, twice."""
    (tmp_path / "holder_of_here.py").write_text(HOLDER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    # Deeper than the name of a socket may be.
    deep = tmp_path / ("deep" * 30)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    made: list[Allocation] = []

    def make(**fields: Any) -> Allocation:
        request = {
            "addresses": {"a": "10.0.0.1", "b": "10.0.0.2"},
            "command": boot_command(sys.executable),
            "mark": str(tmp_path / "mark"),
            **fields,
        }
        made.append(Allocation("holder_of_here", request, package="json"))
        return made[-1]

    yield make
    for holder in made:
        holder.close()


def _start(
    holder: Allocation, program: str, logs: Path, shared: SharedResources[Allocation] | None = None
) -> AgentLaunch:
    cluster = replace(CLUSTER, python=sys.executable)
    processes = command_processes(cluster, (sys.executable, "-c", program), logs)
    # What a plan says of the way; a start takes the holder's.
    processes = tuple(replace(process, reach=("planned", process.node)) for process in processes)
    held = (shared or SharedResources[Allocation]()).held("here", lambda: holder)
    return start_held(
        LaunchRequest(has_agents=True, processes=processes),
        cluster,
        held,
        lambda _process, said: " ".join(said.split()),
    )


def _await(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_ranks_run_there_and_the_machines_are_given_back(hold: Callable[..., Allocation], tmp_path: Path) -> None:
    launch = _start(hold(), "import os; print(os.environ['RANK']); raise SystemExit(int(os.environ['RANK']))", tmp_path)
    try:
        _await(lambda: None not in launch.exit_codes())
        assert launch.exit_codes() == [0, 1]
        assert [(tmp_path / f"rank-{rank}.log").read_text() for rank in (0, 1)] == ["0\n", "1\n"]
        assert (tmp_path / "mark").read_text() == "held"
    finally:
        launch.stop()
    assert (tmp_path / "mark").read_text() == "given back"


def test_several_launches_share_what_is_held(hold: Callable[..., Allocation], tmp_path: Path) -> None:
    shared: SharedResources[Allocation] = SharedResources()
    with shared.held("here", hold) as holder:
        assert shared.get("here") is holder
        for name in ("first", "second"):
            launch = _start(holder, "print('runs')", tmp_path / name, shared)
            try:
                _await(lambda launch=launch: launch.exit_codes() == [0, 0])  # type: ignore[misc]
            finally:
                launch.stop()
            assert (tmp_path / "mark").read_text() == "held"
    assert shared.get("here") is None
    assert (tmp_path / "mark").read_text() == "given back"


def test_why_machines_cannot_be_had_is_said(hold: Callable[..., Allocation], caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OperationError, match=r"^there is no room$"):
        hold(error="there is no room")
    with pytest.raises(OperationError, match=r"the json launcher's holder has ended: ValueError: dear me"):
        hold(crash="dear me")
    with caplog.at_level(logging.WARNING):
        hold()
    assert caplog.messages == ["waiting for machines"]


def test_a_machine_where_nothing_can_be_started_is_named(hold: Callable[..., Allocation], tmp_path: Path) -> None:
    with pytest.raises(OperationError, match=r"^b \(10\.0\.0\.2\): it is broken$"):
        _start(hold(broken=1), "print('runs')", tmp_path)
    assert (tmp_path / "mark").read_text() == "given back"


def test_a_holder_that_is_killed_takes_its_ranks_along(hold: Callable[..., Allocation], tmp_path: Path) -> None:
    holder = hold()
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    launch = _start(holder, program, tmp_path)
    logs = [tmp_path / f"rank-{rank}.log" for rank in (0, 1)]
    try:
        _await(lambda: all(log.read_text() for log in logs))
        holder._process.process.send_signal(signal.SIGKILL)
        _await(lambda: None not in launch.exit_codes())
        assert launch.exit_codes() == [255, 255]
        gone = "the way to it is gone: the holder has ended"
        assert dict(launch.lost()) == {0: f"a (10.0.0.1): {gone}", 1: f"b (10.0.0.2): {gone}"}
        _await(lambda: not any(Path(f"/proc/{log.read_text().strip()}").exists() for log in logs))
        folder = Path(holder.reach(0)[-2]).parent
        assert folder.is_dir()
    finally:
        launch.stop()
    assert not folder.exists()


def test_whoever_waits_for_machines_can_be_interrupted(
    hold: Callable[..., Allocation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The note is what is heard last before the wait that does not end.
    monkeypatch.setattr(logging.getLogger("autosync.launchers.allocation"), "warning", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        hold(forever=True)
    assert (tmp_path / "mark").read_text() == "given back"


def test_machines_are_given_back_even_if_a_library_drops_the_exception(
    hold: Callable[..., Allocation], tmp_path: Path
) -> None:
    with pytest.raises(OperationError, match="holder has ended"):
        hold(finalizer=True)
    assert (tmp_path / "mark").read_text() == "given back"


def _interrupt(_format: str, _words: str) -> None:
    time.sleep(0.5)
    raise KeyboardInterrupt


def test_agents_under_an_actor_of_rays_are_no_children_of_it() -> None:
    machine = RayActor()
    program = "import os; os.write(1, str(os.getppid()).encode()); os.write(1, os.read(0, 99))"
    machine.start(0, [sys.executable, "-c", program])
    machine.start(1, ["/no/such/python"])
    try:
        parent = int(machine.read(0))
        assert parent != os.getpid()
        machine.write(0, b"heard")
        assert machine.read(0) == b"heard"
        assert machine.read(0) == b""
        assert machine.read(1) == b""
        _await(lambda: bool(machine.said(1)))
        assert machine.said(1) == "/no/such/python: No such file or directory\n"
        machine.write(1, b"nobody listens")
    finally:
        _close(machine, 0, 1)


def test_of_what_an_agent_says_under_an_actor_the_end_is_kept() -> None:
    machine = RayActor()
    machine.start(0, [sys.executable, "-c", "import sys; sys.stderr.write('x' * 100_000 + 'the end')"])
    try:
        assert machine.read(0) == b""
        _await(lambda: machine.said(0).endswith("the end"))
        assert len(machine.said(0)) == ray_actor.MAX_SAID_BYTES == MAX_SAID_BYTES
    finally:
        _close(machine, 0)


def _close(machine: RayActor, *numbers: int) -> None:
    for number in numbers:
        machine.close(number)
        for pipe in (machine._agents[number].stdout, machine._agents[number].stderr):
            assert pipe is not None
            pipe.close()
