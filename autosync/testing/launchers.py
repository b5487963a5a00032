"""Checks that a launcher keeps its contract: it starts planned processes, reports how they end, and ends them.

    check_launcher(load_cluster("mine.yaml"), folder)

raises AssertionError with a message about the first fault. It starts short processes on the nodes and takes some
seconds. Third parties run it on a cluster whose file names their launcher.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from autosync.launchers.environment import python_of
from autosync.launchers.request import Launch, Launcher, LaunchRequest, ScriptLaunch, TrainingScript
from autosync.specs.cluster import ClusterSpec
from autosync.specs.launchers import LAUNCHERS

WAIT_SECONDS = 60.0
_TELL = "import os; print(*(os.environ.get(name, '-') for name in {names!r}))"
_CODES = "import os, sys; print('ends'); sys.exit(int(os.environ['RANK']))"
_WAITS = "import time; print('waits', flush=True); time.sleep(600)"
_HEARS = "import signal, sys, time; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(9)); " + _WAITS


def check_launcher(cluster: ClusterSpec, folder: Path) -> None:
    """Check a cluster's launcher against its contract. Logs go to `folder`."""
    make = LAUNCHERS.get(cluster.launcher)
    check_traits(make())
    check_plans(make(), cluster)
    with make().hold(cluster):
        for number, check in enumerate((check_environment, check_codes, check_stop, check_signals)):
            check(make(), cluster, folder / f"check-{number}")


def check_traits(launcher: Launcher) -> None:
    """Check a launcher's properties: for example, it must say how it reaches machines unless all ranks run here."""
    assert isinstance(launcher.is_one_machine, bool), "is_one_machine is no bool"
    assert isinstance(launcher.is_emulated, bool), "is_emulated is no bool"
    assert bool(launcher.way) is not launcher.is_one_machine, "way is empty exactly where all ranks run here"
    assert launcher.default_python, "ranks have no Python where the cluster file names none"
    assert launcher.control in ("loopback", "file", "relayed"), launcher.control


def check_plans(launcher: Launcher, cluster: ClusterSpec) -> None:
    """Check that plans are equal each time, have one process for each rank, workers first, and print all of them."""
    request = launcher.plan(cluster, ("a program",), Path("logs"))
    assert request == launcher.plan(cluster, ("a program",), Path("logs")), "a plan differs from the same plan"
    ranks = [(rank.index, rank.role, cluster.nodes[rank.node].name) for rank in cluster.ranks]
    assert [(process.rank, process.role, process.node) for process in request.processes] == ranks, request
    assert len({process.log for process in request.processes}) == len(ranks), "ranks share a log"
    assert str(request).count("'a program'") == len(ranks), "a process is not printed"
    assert set(launcher.addresses(cluster)) == {node.name for node in cluster.nodes}, "a node has no address"
    script = TrainingScript(command=("a program",), port=29501)
    workers = launcher.plan_script(cluster, script, Path("logs")).processes
    assert [process.rank for process in workers] == list(range(cluster.num_workers)), (
        "servers run processes that are not planned"
    )


def check_environment(launcher: Launcher, cluster: ClusterSpec, folder: Path) -> None:
    """Check the environment of ranks: their number, the meeting port, their node, and the requested variables."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "AUTOSYNC_NODE", "WISH")
    command = (python_of(cluster), "-c", _TELL.format(names=names))
    script = TrainingScript(command=command, server_command=command, environment={"WISH": "granted"}, port=29501)
    request = launcher.plan_script(cluster, script, folder)
    assert _end(launcher, request) == [0] * len(cluster.ranks), _told(request)
    for rank, process in zip(cluster.ranks, request.processes, strict=True):
        node = cluster.nodes[rank.node].name
        expected = f"{rank.index} {rank.local} {cluster.num_workers} 29501 {node} granted\n"
        assert process.log.read_text("utf-8") == expected, process.log.read_text("utf-8")


def check_codes(launcher: Launcher, cluster: ClusterSpec, folder: Path) -> None:
    """Check that exit codes come in the order of ranks, and that the logs are complete by then."""
    request = launcher.plan(cluster, (python_of(cluster), "-c", _CODES), folder)
    assert _end(launcher, request) == list(range(len(cluster.ranks))), _told(request)
    assert [process.log.read_text("utf-8") for process in request.processes] == ["ends\n"] * len(request.processes)


def check_stop(launcher: Launcher, cluster: ClusterSpec, folder: Path) -> None:
    """Check that `stop` ends running processes, waits for them, and may be called again."""
    request = launcher.plan(cluster, (python_of(cluster), "-c", _WAITS), folder)
    launch = launcher.start(request)
    try:
        _await(lambda: all("waits" in log for log in _logs(request)), launch, request)
        assert list(launch.exit_codes()) == [None] * len(request.processes), "a rank has ended unasked"
        assert not launch.lost(), launch.lost()
    finally:
        launch.stop()
    assert None not in launch.exit_codes(), "a rank runs on"
    launch.stop()


def check_signals(launcher: Launcher, cluster: ClusterSpec, folder: Path) -> None:
    """Check that signals reach every rank of a script, and that `ended` reports all ranks."""
    script = TrainingScript(command=(python_of(cluster), "-c", _HEARS), port=29501)
    request = launcher.plan_script(cluster, script, folder)
    launch = cast(ScriptLaunch, launcher.start(request))
    try:
        _await(lambda: all("waits" in log for log in _logs(request)), launch, request)
        launch.signal(signal.SIGUSR1)
        _await(lambda: None not in launch.exit_codes(), launch, request)
        assert list(launch.exit_codes()) == [9] * len(request.processes), launch.exit_codes()
        assert sorted(launch.ended()) == list(range(len(request.processes))), launch.ended()
    finally:
        launch.stop()


def _end(launcher: Launcher, request: LaunchRequest) -> list[int | None]:
    """Run the processes of a request to their end and return their exit codes."""
    launch = launcher.start(replace(request))
    try:
        _await(lambda: None not in launch.exit_codes(), launch, request)
        return list(launch.exit_codes())
    finally:
        launch.stop()


def _await(is_so: Callable[[], bool], launch: Launch, request: LaunchRequest) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert not launch.lost(), launch.lost()
        assert time.monotonic() < deadline, f"not within {WAIT_SECONDS:g} s: {launch.exit_codes()}, {_told(request)}"
        time.sleep(0.02)


def _logs(request: LaunchRequest) -> Sequence[str]:
    return [p.log.read_text("utf-8", "replace") if p.log.exists() else "" for p in request.processes]


def _told(request: LaunchRequest) -> str:
    """Return the last output of each process, for messages."""
    return " | ".join(log[-300:] for log in _logs(request))
