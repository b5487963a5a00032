"""The local launcher: its plan as data, its start, and its end."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autosync.errors import InputError, OperationError
from autosync.launchers.local import LocalLauncher
from autosync.launchers.request import LaunchRequest, Process
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.launchers import LAUNCHERS

PATIENT = "import time; time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); {PATIENT}"


def _node(name: str, host: str = "localhost", **fields: object) -> Node:
    return Node(name=name, host=host, bandwidth_out=1e9, bandwidth_in=1e9, **fields)  # type: ignore[arg-type]


def _request(folder: Path, *programs: str) -> LaunchRequest:
    return LaunchRequest(
        processes=tuple(
            Process(rank=i, host="localhost", command=(sys.executable, "-c", program), log=folder / f"{i}.log")
            for i, program in enumerate(programs)
        )
    )


def test_a_plan_reads_as_shell_lines() -> None:
    cluster = ClusterSpec(name="c", nodes=(_node("a", devices=2), _node("b", "127.0.0.1")))
    request = LocalLauncher().plan(cluster, ("python", "train it.py"), Path("logs"))
    common = "GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1 PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 python 'train it.py'"
    assert str(request).splitlines() == [
        f"localhost: RANK=0 LOCAL_RANK=0 WORLD_SIZE=3 {common} > logs/rank-0.log 2>&1",
        f"localhost: RANK=1 LOCAL_RANK=1 WORLD_SIZE=3 {common} > logs/rank-1.log 2>&1",
        f"127.0.0.1: RANK=2 LOCAL_RANK=0 WORLD_SIZE=3 {common} > logs/rank-2.log 2>&1",
    ]


def test_ranks_that_only_serve_come_after_the_workers_and_are_not_of_their_world() -> None:
    cluster = ClusterSpec(name="c", nodes=(_node("s", role="server", devices=0), _node("a", devices=2)))
    processes = LocalLauncher().plan(cluster, ("python",), Path()).processes
    assert [process.role for process in processes] == ["worker", "worker", "server"]
    assert [process.environment["RANK"] for process in processes] == ["0", "1", "2"]
    assert {process.environment["WORLD_SIZE"] for process in processes} == {"2"}


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ((_node("a", "10.1.2.3"),), "a is on 10.1.2.3"),
        ((_node("a"), _node("b", "other-machine")), "b is on other-machine"),
    ],
)
def test_what_is_not_here_is_refused(nodes: tuple[Node, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        LocalLauncher().plan(ClusterSpec(name="c", nodes=nodes), ("python",), Path())


def test_processes_have_their_environment_and_their_log(tmp_path: Path) -> None:
    program = "import os; print(os.environ['RANK']); raise SystemExit(int(os.environ['RANK']))"
    cluster = ClusterSpec(name="c", nodes=(_node("a", devices=2),))
    launcher = LocalLauncher()
    launch = launcher.start(launcher.plan(cluster, (sys.executable, "-c", program), tmp_path))
    try:
        while None in launch.exit_codes():
            time.sleep(0.01)
        assert launch.exit_codes() == [0, 1]
        assert [(tmp_path / f"rank-{rank}.log").read_text() for rank in (0, 1)] == ["0\n", "1\n"]
    finally:
        launch.stop()


def test_stop_ends_also_who_does_not_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autosync.launchers.local.STOP_SECONDS", 0.2)
    launch = LocalLauncher().start(_request(tmp_path, PATIENT, STUBBORN))
    while "deaf" not in (tmp_path / "1.log").read_text():
        time.sleep(0.01)
    launch.stop()
    assert launch.exit_codes() == [-signal.SIGTERM, -signal.SIGKILL]
    launch.stop()


def test_if_one_cannot_be_started_none_is_left(tmp_path: Path) -> None:
    program = f"import os; print(os.getpid(), flush=True); {PATIENT}"
    good, bad = _request(tmp_path, program, "").processes
    bad = Process(rank=1, host="localhost", command=("/no/such/program",), log=bad.log)

    def in_turn() -> Iterator[Process]:
        yield good
        while not good.log.read_text():
            time.sleep(0.01)
        yield bad

    with pytest.raises(OperationError, match=r"a rank could not be started: .*no/such/program"):
        LocalLauncher().start(LaunchRequest(processes=in_turn()))  # type: ignore[arg-type]
    with pytest.raises(ProcessLookupError):
        os.kill(int(good.log.read_text()), 0)


def test_the_local_launcher_is_known_by_name() -> None:
    assert LAUNCHERS.get("local") is LocalLauncher


@pytest.fixture
def hosts(make_here: Callable[[ClusterSpec], Any]) -> Any:
    """This machine as two nodes."""
    return make_here(ClusterSpec(name="here", nodes=(_node("n0", devices=2), _node("n1"))))


@pytest.mark.slow
def test_trials_run(hosts: Any, check_tuning: Callable[..., None]) -> None:
    check_tuning(hosts.cluster)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_launch_is_ended_or_killed(check_ended: Callable[[int], None], number: int) -> None:
    check_ended(number)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_of_tuning_that_is_interrupted_or_killed_the_trials_are_kept(
    check_tuning_ended: Callable[[int], None], number: int
) -> None:
    check_tuning_ended(number)


@pytest.mark.slow
def test_ctrl_c_at_any_moment_leaves_nothing(check_ctrl_c: Callable[..., None]) -> None:
    check_ctrl_c(0.2, 1.0, 2.0, 4.0)
