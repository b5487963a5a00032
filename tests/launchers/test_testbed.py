"""Ranks in the hosts of a testbed: planned purely, run as batch processes, and gone with their testbed."""

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autosync.errors import OperationError
from autosync.launchers.request import Launch
from autosync.launchers.testbed import TestbedLauncher
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.launchers import LAUNCHERS
from autosync.testbed import live, up
from autosync.testbed.layout import cluster_key
from autosync.testbed.requirements import find_folders

TRAIN = Path(__file__).parent / "train.py"
SHOW = """
import os, socket
print(os.sched_getscheduler(0) == os.SCHED_BATCH, os.environ["RANK"], os.environ["LOCAL_RANK"],
      os.environ["WORLD_SIZE"], sorted(name for _, name in socket.if_nameindex()), os.environ["GLOO_SOCKET_IFNAME"])
"""


@pytest.fixture
def cluster() -> Iterator[ClusterSpec]:
    try:
        find_folders()
    except OperationError as error:
        pytest.skip(str(error))
    nodes = (
        Node(name="a", host="a", devices=2, bandwidth_out=1e7, bandwidth_in=1e7),
        Node(name="s", host="s", role="server", devices=0, bandwidth_out=1e7, bandwidth_in=1e7),
        Node(name="b", host="b", bandwidth_out=1e7, bandwidth_in=1e7),
    )
    made = ClusterSpec(name=f"test-{secrets.token_hex(4)}", nodes=nodes, launcher="testbed")
    yield made
    live.down(made, force=True)


def _wait(launch: Launch) -> list[int | None]:
    deadline = time.monotonic() + 30
    while None in launch.exit_codes() and time.monotonic() < deadline:
        time.sleep(0.01)
    return list(launch.exit_codes())


def test_the_plan_is_pure_and_complete(cluster: ClusterSpec, tmp_path: Path) -> None:
    launcher = TestbedLauncher()
    request = launcher.plan(cluster, ("train", "x"), tmp_path)
    assert request == launcher.plan(cluster, ("train", "x"), tmp_path)
    assert find_folders().existing(cluster_key(cluster)) == ()
    assert [process.host for process in request.processes] == ["a", "a", "b", "s"]
    assert all(process.command[-5:] == ("chrt", "--batch", "0", "train", "x") for process in request.processes)
    assert [process.command[0] for process in request.processes] == ["nsenter"] * 4
    assert [process.role for process in request.processes] == ["worker"] * 3 + ["server"]
    assert request.processes[2].command[-6].endswith(f"autosync-{cluster_key(cluster)}-2")
    assert request.processes[1].environment == {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "3",
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "1",
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
    }


def test_ranks_run_in_their_hosts_and_the_testbed_goes_with_them(cluster: ClusterSpec, tmp_path: Path) -> None:
    launcher = LAUNCHERS.get("testbed")()
    launch = launcher.start(launcher.plan(cluster, (sys.executable, "-c", SHOW), tmp_path))
    try:
        assert _wait(launch) == [0, 0, 0, 0]
    finally:
        launch.stop()
    logs = [(tmp_path / f"rank-{rank}.log").read_text() for rank in range(4)]
    folders = [(0, 0), (1, 1), (2, 0), (3, 0)]
    assert logs == [f"True {rank} {local} 3 ['eth0', 'lo'] eth0\n" for rank, local in folders]
    assert find_folders().existing(cluster_key(cluster)) == ()


def test_a_testbed_that_is_up_is_used_and_stays(cluster: ClusterSpec, tmp_path: Path) -> None:
    launcher = TestbedLauncher()
    with up(cluster) as bed:
        launch = launcher.start(launcher.plan(cluster, ("sleep", "60"), tmp_path))
        try:
            assert [len(running) for running in bed.processes().values()] == [2, 1, 1] or None in launch.exit_codes()
        finally:
            launch.stop()
        assert all(code not in (None, 0) for code in launch.exit_codes())
        assert bed.faults() == ()
    assert find_folders().existing(cluster_key(cluster)) == ()


def test_a_command_that_is_not_there_ends_with_127(cluster: ClusterSpec, tmp_path: Path) -> None:
    launcher = TestbedLauncher()
    launch = launcher.start(launcher.plan(cluster, ("no-such-command",), tmp_path))
    try:
        assert _wait(launch) == [127, 127, 127, 127]
    finally:
        launch.stop()


def test_a_start_that_fails_leaves_no_rank_and_no_testbed(
    cluster: ClusterSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = TestbedLauncher()
    request = launcher.plan(cluster, ("sleep", "60"), tmp_path)
    request.processes[-1].log.mkdir()
    with pytest.raises(OperationError, match="a rank could not be started: "):
        launcher.start(request)
    assert find_folders().existing(cluster_key(cluster)) == ()
    assert os.getpid() > 0


@pytest.mark.slow
def test_a_script_trains_as_it_does_here(
    cluster: ClusterSpec,
    make_bundle: Callable[..., Path],
    run_autosync: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    here = replace(cluster, launcher="local", nodes=tuple(replace(node, host="localhost") for node in cluster.nodes))
    on_bed = run_autosync("launch", make_bundle(cluster, "ps_load_balanced"), "--", TRAIN)
    local = run_autosync("launch", make_bundle(here, "ps_load_balanced", "local.yaml"), "--", TRAIN)
    assert (on_bed.returncode, local.returncode) == (0, 0), on_bed.stderr + local.stderr
    steps = re.findall(r"step \d: [0-9.]+", on_bed.stdout)
    assert len(steps) == 4
    assert steps == re.findall(r"step \d: [0-9.]+", local.stdout)
    assert "s rank 3 | training has ended after 4 steps" in on_bed.stdout
    assert find_folders().existing(cluster_key(cluster)) == ()


@pytest.fixture
def hosts(cluster: ClusterSpec, make_here: Callable[[ClusterSpec], Any]) -> Iterator[Any]:
    """The testbed's hosts, which are gone with what runs in them."""
    yield make_here(cluster)
    assert find_folders().existing(cluster_key(cluster)) == ()


@pytest.mark.slow
def test_trials_run(hosts: Any, check_tuning: Callable[..., None]) -> None:
    check_tuning(hosts.cluster)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_launch_is_ended(check_ended: Callable[[int], None], number: int) -> None:
    check_ended(number)


@pytest.mark.slow
def test_of_tuning_that_is_interrupted_the_trials_are_kept(check_tuning_ended: Callable[[int], None]) -> None:
    check_tuning_ended(signal.SIGINT)


@pytest.mark.slow
def test_ctrl_c_at_any_moment_leaves_nothing(check_ctrl_c: Callable[..., None]) -> None:
    check_ctrl_c(0.2, 1.0, 2.0, 4.0)
