"""The shared parts of the launchers' tests: bundles for train.py, command lines with a time limit, and ways to wait.

Tests of launchers that need real machines define a fixture `hosts` in their module. `cluster` is their cluster.
`through` and `environment` make a command run from the launching host. `left` returns the processes of autosync that
are left on some hosts or anywhere. `rejoin` reconnects a host that was cut off the network. `keep_temporary` makes a
host keep its temporary files on a disk, or in the usual place again.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from autosync.datasets.studies import read_study
from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import save_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import model_of
from autosync.strategy.bundle import save_bundle
from autosync.strategy.presets import build_preset
from tests.helpers.launch_failures import (  # noqa: F401 - pytest finds fixtures by their names here
    LIMIT_SECONDS,
    TRAIN,
    check_ctrl_c,
    check_ended,
    check_full_disk,
    check_tuning_ended,
    check_vanished,
    check_vanished_in_tuning,
    cut_off,
)

AUTOSYNC = (sys.executable, "-P", "-m", "autosync.cli")
NUM_TRIALS = 10
CONTRACT = """
import sys
from pathlib import Path
from autosync.specs.cluster_file import load_cluster
from autosync.testing.launchers import check_launcher
check_launcher(load_cluster(sys.argv[1]), Path(sys.argv[2]))
"""


@functools.cache
def _model() -> ModelSpec:
    return model_of(f"{TRAIN}:task")


@dataclass(frozen=True, slots=True)
class Here:
    """This machine, in the place of real hosts: whatever works in the test's folder is autosync's."""

    cluster: ClusterSpec
    folder: Path
    through: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def left(self, *_nodes: str) -> list[str]:
        """The processes that work in the folder."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            # Others end while we look.
            with contextlib.suppress(OSError):
                if (process / "cwd").readlink() == self.folder:
                    found.append(f"{process.name}: {(process / 'cmdline').read_text()}")
        return found


@pytest.fixture
def make_here(tmp_path: Path) -> Callable[[ClusterSpec], Here]:
    """This machine as the hosts of a cluster."""
    return lambda cluster: Here(cluster, tmp_path)


@pytest.fixture
def make_bundle(tmp_path: Path) -> Callable[..., Path]:
    """Writes a preset's bundle for a cluster."""

    def write(cluster: ClusterSpec, preset: str = "ddp", name: str = "bundle.yaml") -> Path:
        strategy = build_preset(preset, _model(), cluster)
        bundle = bundled(strategy, _model(), cluster)
        save_bundle(tmp_path / name, bundle)
        return tmp_path / name

    return write


@pytest.fixture
def run_autosync(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command line of autosync's in a folder of the test's own."""

    def run(
        *arguments: str | Path, through: Sequence[str] = (), **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            (*through, *AUTOSYNC, *map(str, arguments)),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
            env={**os.environ, "PYTHONSAFEPATH": "1", **environment},
        )

    return run


@pytest.fixture(scope="session")
def helper() -> Callable[[str], Any]:
    """Loads a module that lies beside the tests: their folders are no packages."""

    def load(name: str) -> Any:
        spec = util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        module = util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def start_autosync(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a command line of autosync's in a folder of the test's own; kills what is left of it."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str | Path, through: Sequence[str] = (), **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            (*through, *AUTOSYNC, *map(str, arguments)),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONSAFEPATH": "1", **environment},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def check_contract(tmp_path: Path) -> Callable[..., None]:
    """Holds the launcher of a cluster against the contract of all launchers."""

    def check(cluster: ClusterSpec, *, through: Sequence[str] = (), **environment: str) -> None:
        save_cluster(tmp_path / "c.yaml", cluster)
        done = subprocess.run(
            (*through, sys.executable, "-P", "-c", CONTRACT, tmp_path / "c.yaml", tmp_path / "logs"),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=110,
            env={**os.environ, **environment},
        )
        assert done.returncode == 0, done.stderr

    return check


@pytest.fixture
def start(hosts: Any, start_autosync: Callable[..., subprocess.Popen[str]]) -> Callable[..., subprocess.Popen[str]]:
    """Starts a command line of autosync's where the hosts are used from."""

    def command(*arguments: str | Path, within: Sequence[str] = ()) -> subprocess.Popen[str]:
        if arguments[0] == "launch":
            # No tuning run of this user's has written the bundles of these tests: they are as if received.
            arguments = ("launch", "--trust", *arguments[1:])
        return start_autosync(*arguments, through=(*hosts.through, *within), **hosts.environment)

    return command


@pytest.fixture
def run(start: Callable[..., subprocess.Popen[str]]) -> Callable[..., tuple[int, str, str]]:
    """Runs such a command line to its end: exit code, output, errors."""

    def command(*arguments: str | Path) -> tuple[int, str, str]:
        process = start(*arguments)
        out, err = process.communicate(timeout=110)
        return process.returncode, out, err

    return command


@pytest.fixture
def bundle(hosts: Any, make_bundle: Callable[..., Path]) -> Path:
    """Stock DDP's buckets on the hosts."""
    return make_bundle(hosts.cluster)


@pytest.fixture
def start_waiting(
    hosts: Any, bundle: Path, start: Callable[..., subprocess.Popen[str]]
) -> Callable[..., tuple[subprocess.Popen[str], list[int]]]:
    """Starts a script that waits on the hosts: the launch, once all ranks do, and which processes they say they are."""

    def launch(*, within: Sequence[str] = ()) -> tuple[subprocess.Popen[str], list[int]]:
        launched = start("launch", bundle, "--", TRAIN, "--wait", within=within)
        assert launched.stdout is not None
        processes = []
        for _ in range(hosts.cluster.num_workers):
            line = launched.stdout.readline()
            assert "waits as process" in line, line + launched.communicate(timeout=LIMIT_SECONDS)[1]
            processes.append(int(line.split()[-1]))
        return launched, processes

    return launch


@pytest.fixture
def await_free(hosts: Any) -> Callable[..., None]:
    """Waits until nothing of autosync's is left on some nodes, or anywhere."""

    def wait(*nodes: str, seconds: float = LIMIT_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while left := hosts.left(*nodes):
            assert time.monotonic() < deadline, left
            time.sleep(0.2)

    return wait


@pytest.fixture
def check_losses(
    run: Callable[..., tuple[int, str, str]], make_bundle: Callable[..., Path], await_free: Callable[..., None]
) -> Callable[[ClusterSpec], None]:
    """Trains on a cluster and here: the losses are the same."""

    def check(cluster: ClusterSpec) -> None:
        nodes = tuple(replace(node, host="localhost") for node in cluster.nodes)
        losses = []
        for one in (cluster, replace(cluster, launcher="local", nodes=nodes)):
            code, out, err = run("launch", make_bundle(one, name=f"{one.launcher}.yaml"), "--", TRAIN)
            assert code == 0, err
            losses.append(re.findall(r"step \d+: ([0-9.]+)", out))
            await_free()
        assert len(losses[0]) == 4
        assert losses[0] == losses[1]

    return check


@pytest.fixture
def check_tuning(
    start: Callable[..., subprocess.Popen[str]], await_free: Callable[..., None], tmp_path: Path
) -> Callable[..., None]:
    """Tunes on a cluster, while it can be watched: all trials run, unless there is nothing to gain."""

    def check(cluster: ClusterSpec, *, watch: Callable[[subprocess.Popen[str]], None] = lambda _tuned: None) -> None:
        save_cluster(tmp_path / "c.yaml", cluster)
        trials = ("--trials", str(NUM_TRIALS), "--effort", "quick")
        tuned = start("tune", f"{TRAIN}:task", "--cluster", "c.yaml", *trials, "--json")
        watch(tuned)
        out, err = tuned.communicate(timeout=200)
        assert tuned.returncode == 0, err
        summary = json.loads(out)
        assert summary["num_failed_trials"] == 0, err
        # Where a step takes no longer than its compute there is nothing to search for.
        if "no strategy can be much faster" not in err:
            assert summary["num_trials"] == NUM_TRIALS, err
        await_free()

    return check


@pytest.fixture
def start_tuning(
    hosts: Any, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> Callable[[], subprocess.Popen[str]]:
    """Starts a study `kept` that would go on for long; returns when it has a trial."""

    def tune() -> subprocess.Popen[str]:
        save_cluster(tmp_path / "c.yaml", hosts.cluster)
        options = ("--trials", "40", "--study", "kept", "--proposer", "random")
        tuned = start("tune", f"{TRAIN}:task", "--cluster", "c.yaml", *options)
        assert tuned.stderr is not None
        told = []
        for line in tuned.stderr:
            told.append(line)
            if line.startswith("trial 1 of 40: "):
                return tuned
        pytest.fail("".join(told))

    return tune


@pytest.fixture
def check_kept(tmp_path: Path) -> Callable[[], None]:
    """The study `kept` has what was tried."""

    def check() -> None:
        assert list(read_study(tmp_path / "autosync-studies" / "kept"))

    return check
