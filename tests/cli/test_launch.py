"""`autosync launch` on this machine: environment, output, exit codes and signals, and no process is left."""

from __future__ import annotations

import itertools
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import save_cluster
from autosync.specs.model_file import model_of
from autosync.strategy.bundle import save_bundle
from autosync.strategy.presets import build_preset
from tests.helpers.shown_commands import shapes, shown_commands

TRAIN = Path(__file__).parents[1] / "launchers" / "train.py"
# Ranks that need not train are there at once.
IDLE = (sys.executable, str(TRAIN.with_name("idle.py")))
Run = Callable[..., subprocess.CompletedProcess[str]]
AwaitGone = Callable[[Iterable[int]], None]


def _node(name: str, **fields: object) -> Node:
    return Node(name=name, host="localhost", bandwidth_out=1e8, bandwidth_in=1e8, **fields)  # type: ignore[arg-type]


CLUSTER = ClusterSpec(name="here", nodes=(_node("n0", devices=2), _node("n1")))
SERVED = ClusterSpec(name="served", nodes=(_node("n0", devices=2), _node("s0", role="server", devices=0)))


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with bundles: here.yaml by all-reduce, served.yaml with a server."""
    folder = tmp_path_factory.mktemp("bundles")
    model = model_of(f"{TRAIN}:task")
    for cluster, preset in ((CLUSTER, "ddp"), (SERVED, "ps_load_balanced")):
        strategy = build_preset(preset, model, cluster)
        bundle = bundled(strategy, model, cluster)
        save_bundle(folder / f"{cluster.name}.yaml", bundle)
    return folder


@pytest.fixture
def folder(bundles: Path, tmp_path: Path) -> Path:
    shutil.copytree(bundles, tmp_path, dirs_exist_ok=True)
    return tmp_path


def _command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-P", "-m", "autosync.cli", "launch", *map(str, arguments)]


@pytest.fixture
def run(folder: Path) -> Run:
    """Runs `autosync launch` in a folder with bundles."""

    def launch(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            _command(*arguments),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
            env={**os.environ, **environment},
        )

    return launch


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `autosync launch` and waits until every rank waits; kills what is left of it."""
    started: list[subprocess.Popen[str]] = []

    def launch(*arguments: str, under: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            (*under, *_command(*arguments)), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield launch
    for process in started:
        process.kill()
        process.communicate()


def _losses(text: str) -> list[str]:
    return re.findall(r"step \d+: ([0-9.]+)", text)


def test_a_script_finds_its_bundle_and_trains_as_one_process_does(run: Run) -> None:
    launched = run("here.yaml", "--", TRAIN)
    assert launched.returncode == 0, launched.stderr
    assert len(_losses(launched.stdout)) == 4
    assert all(line.startswith("n0 rank 0 | step ") for line in launched.stdout.splitlines()), launched.stdout
    assert launched.stderr == "here: 3 ranks on 2 nodes run (launcher local)\n"
    assert shapes(shown_commands("docs/launch.md")[0].output) <= shapes(launched.stderr + launched.stdout)
    assert list(map(float, _losses(launched.stdout))) == pytest.approx(_losses_of_one_process(3, 4), rel=1e-5)


def _losses_of_one_process(num_ranks: int, num_steps: int) -> list[float]:
    """The mean losses of steps on the batches of so many ranks."""
    train = runpy.run_path(str(TRAIN))
    model = train["make_model"]()
    optimizer = train["make_optimizer"](model.parameters())
    found = []
    for step in range(num_steps):
        batches = [train["batch"](step, rank) for rank in range(num_ranks)]
        loss = sum(train["loss_of"](model, one) for one in batches) / num_ranks
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.slow
def test_a_script_trains_as_under_torchrun(run: Run, folder: Path) -> None:
    launched = run("here.yaml", "--", TRAIN)
    assert launched.returncode == 0, launched.stderr
    torchrun = subprocess.run(
        (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", TRAIN),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        cwd=folder,
        env={**os.environ, "AUTOSYNC_BUNDLE": "here.yaml", "OMP_NUM_THREADS": "1"},
    )
    assert torchrun.returncode == 0, torchrun.stderr
    assert _losses(torchrun.stdout) == _losses(launched.stdout)


@pytest.mark.slow
def test_nodes_that_only_serve_run_the_server(run: Run) -> None:
    launched = run("served.yaml", "--", TRAIN, "--steps", "2")
    assert launched.returncode == 0, launched.stderr
    shown = re.sub(r"at tcp://\S+|step \d: \S+|\(strategy \w+\)|under \S+", "…", launched.stdout).splitlines()
    assert [line for line in shown if line.startswith("s0")] == [
        "s0 rank 2 | node s0 serves … …: waiting for workers …",
        "s0 rank 2 | training has begun",
        "s0 rank 2 | training has ended after 2 steps",
        "s0 rank 2 | the workers' store is gone: nothing more to serve",
    ]
    assert len(_losses(launched.stdout)) == 2


def test_ranks_have_the_environment_of_torchrun_and_what_is_asked_for(run: Run) -> None:
    launched = run("here.yaml", "--env", "WISH=granted", "--", *IDLE)
    assert sorted(launched.stdout.splitlines()) == [
        "n0 rank 0 | 0 0 3 2 0 n0 granted",
        "n0 rank 1 | 1 1 3 2 0 n0 granted",
        "n1 rank 2 | 2 0 3 1 1 n1 granted",
    ]
    # Stock DDP in such a program would not see the bundle.
    assert f"an unchanged script needs: -- {IDLE[1]}\n" in launched.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--rank", "1", "--exit", "7"), 7, "error: rank 1 on n0: exit code 7\n"),
        pytest.param(
            ("--rank", "2", "--kill"), 137, "error: rank 2 on n1: killed by SIGKILL\n", marks=pytest.mark.slow
        ),
    ],
)
def test_the_first_that_fails_gives_the_code(run: Run, arguments: tuple[str, ...], code: int, words: str) -> None:
    launched = run("here.yaml", "--logs", "logs", "--", *IDLE, "--wait", *arguments)
    assert launched.returncode == code
    assert words in launched.stderr
    assert launched.stderr.endswith("what ranks wrote: logs\n")
    again = run("here.yaml", "--logs", "logs", "--", TRAIN)
    assert (again.returncode, again.stdout) == (2, "")
    assert "logs has the logs of another launch" in again.stderr


def test_a_program_that_is_not_there_is_named_with_its_rank(run: Run) -> None:
    launched = run("here.yaml", "--", "no-such-program")
    assert launched.returncode == 1
    assert "error: rank 0 on n0 could not be started: " in launched.stderr
    assert "no-such-program" in launched.stderr


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_signal_is_passed_on_and_nothing_is_left(
    start: Callable[..., subprocess.Popen[str]], number: int, await_gone: AwaitGone
) -> None:
    launched = start("here.yaml", "--", str(TRAIN), "--wait")
    ids = _waiting(launched)
    launched.send_signal(number)
    rest, errors = launched.communicate(timeout=60)
    assert launched.returncode == 128 + number
    if number == signal.SIGTERM:
        assert rest.count("asked to end") == 3
    assert f"all ranks were ended on {signal.Signals(number).name}" in errors
    await_gone(ids)


def test_a_signal_that_the_caller_ignores_stays_ignored(
    start: Callable[..., subprocess.Popen[str]], await_gone: AwaitGone
) -> None:
    launched = start("here.yaml", "--", *IDLE, "--wait", under=("nohup",))
    ids = _waiting(launched)
    launched.send_signal(signal.SIGHUP)
    launched.send_signal(signal.SIGTERM)
    launched.communicate(timeout=60)
    assert launched.returncode == 128 + signal.SIGTERM
    await_gone(ids)


def test_a_second_signal_ends_who_does_not_listen(
    start: Callable[..., subprocess.Popen[str]], await_gone: AwaitGone
) -> None:
    launched = start("here.yaml", "--", "sh", "-c", 'trap "" INT TERM; echo waits as $$; sleep 600')
    ids = _waiting(launched)
    launched.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert launched.poll() is None
    launched.send_signal(signal.SIGINT)
    launched.communicate(timeout=14)
    assert launched.returncode == 130
    await_gone(ids)


def test_ranks_that_print_without_end_can_be_interrupted(
    start: Callable[..., subprocess.Popen[str]], await_gone: AwaitGone
) -> None:
    launched = start("here.yaml", "--", "sh", "-c", "echo waits as $$; sleep 0.5; while :; do echo more; done")
    ids = _waiting(launched)
    assert launched.stdout is not None
    assert launched.stdout.readline().endswith("| more\n")
    launched.send_signal(signal.SIGINT)
    _, errors = launched.communicate(timeout=60)
    assert launched.returncode == 130
    assert "error: all ranks were ended on SIGINT\n" in errors
    await_gone(ids)


SAVES = """
trap 'echo saved > saved-$RANK; exit' INT
echo waits as $$
while :; do echo more; sleep 0.1; done
"""


def test_without_a_reader_of_its_output_a_training_goes_on(
    start: Callable[..., subprocess.Popen[str]], folder: Path, await_gone: AwaitGone
) -> None:
    launched = start("here.yaml", "--", "sh", "-c", SAVES)
    ids = [int(line.rpartition(" ")[2]) for line in _lines_with(launched, "waits as", 3)]
    assert launched.stdout is not None
    assert launched.stderr is not None
    launched.stdout.close()
    told = next(line for line in launched.stderr if line.startswith("standard output"))
    (logs,) = re.findall(r"Broken pipe: the training goes on, and what ranks write is in (\S+)\n", told)
    assert launched.poll() is None
    launched.send_signal(signal.SIGINT)
    rest = launched.stderr.read()
    assert launched.wait(60) == 130, rest
    assert rest == f"error: all ranks were ended on SIGINT\nwhat ranks wrote: {logs}\n"
    assert sorted(path.name for path in folder.glob("saved-*")) == ["saved-0", "saved-1", "saved-2"]
    shutil.rmtree(logs)
    await_gone(ids)


def _lines_with(launched: subprocess.Popen[str], words: str, number: int) -> list[str]:
    """The next lines of the output with some words, once there are so many."""
    assert launched.stdout is not None
    return list(itertools.islice((line for line in launched.stdout if words in line), number))


def test_nothing_is_left_of_a_launch_that_is_killed(
    start: Callable[..., subprocess.Popen[str]], await_gone: AwaitGone
) -> None:
    launched = start("here.yaml", "--", *IDLE, "--wait")
    ids = _waiting(launched)
    launched.kill()
    launched.wait()
    await_gone(ids)


def test_what_ranks_leave_behind_is_ended_with_them(run: Run, await_gone: AwaitGone) -> None:
    launched = run("here.yaml", "--", "sh", "-c", "setsid sleep 600 & echo left $!")
    assert launched.returncode == 0, launched.stderr
    ids = [int(found) for found in re.findall(r"left (\d+)", launched.stdout)]
    assert len(ids) == 3
    await_gone(ids)


def _waiting(launched: subprocess.Popen[str]) -> list[int]:
    """The process ids of the three ranks, once all of them wait."""
    assert launched.stdout is not None
    return [int(launched.stdout.readline().rpartition(" ")[2]) for _ in range(3)]


def test_a_dry_run_prints_the_exact_request(run: Run, folder: Path) -> None:
    printed = run("served.yaml", "--master-port", "29501", "--dry-run", "--", TRAIN, "--steps", "2")
    common = "MASTER_ADDR=127.0.0.1 MASTER_PORT=29501"
    at_hand = f"AUTOSYNC_BUNDLE={folder / 'served.yaml'}"
    python = sys.executable
    quiet = "TORCH_CPP_LOG_LEVEL=ERROR"
    serves = f"  localhost: {at_hand} RANK=2 LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1"
    last = "GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1"
    assert printed.stdout.splitlines() == [
        "would be started on served (launcher local):",
        *(
            f"  localhost: {at_hand} RANK={rank} LOCAL_RANK={rank} WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 GROUP_RANK=0"
            f" GROUP_WORLD_SIZE=1 {common} AUTOSYNC_NODE=n0 {last} {python} -P -m autosync.run {TRAIN} --steps 2"
            f" > LOGS/rank-{rank}.log 2>&1"
            for rank in (0, 1)
        ),
        f"{serves} {common} AUTOSYNC_NODE=s0 {last} {quiet} {python} -P -m autosync.cli serve > LOGS/rank-2.log 2>&1",
    ]
    fields = json.loads(run("served.yaml", "--dry-run", "--json", "--", TRAIN).stdout)
    assert [process["rank"] for process in fields["processes"]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("here.yaml",), "missing argument"),
        (("nowhere.yaml", "--", "x.py"), "nowhere.yaml"),
        (("here.yaml", "--json", "--", "x.py"), "--json goes with --dry-run"),
        (("here.yaml", "--env", "NOT_SET_ANYWHERE", "--", "x.py"), "no such variable is set here"),
        (("here.yaml", "--cluster", "other.yaml", "--", "x.py"), "the node n1"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    run: Run, folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    save_cluster(folder / "other.yaml", SERVED)
    launched = run(*arguments)
    assert (launched.returncode, launched.stdout) == (2, "")
    assert words in launched.stderr.lower()
