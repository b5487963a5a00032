"""What the launchers' tests share: bundles for train.py, command lines with a limit, and ways to wait and look."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from autosync.plan.identity import plan_id
from autosync.plan.lowering import lower
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import save_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import model_of
from autosync.strategy.bundle import Bundle, save_bundle
from autosync.strategy.canonical import strategy_id
from autosync.strategy.presets import build_preset

TRAIN = Path(__file__).parent / "train.py"
AUTOSYNC = (sys.executable, "-P", "-m", "autosync.cli")
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


@pytest.fixture
def make_bundle(tmp_path: Path) -> Callable[..., Path]:
    """Writes a preset's bundle for a cluster."""

    def write(cluster: ClusterSpec, preset: str = "ddp", name: str = "bundle.yaml") -> Path:
        strategy = build_preset(preset, _model(), cluster)
        bundle = Bundle(
            strategy=strategy,
            model=_model(),
            cluster=cluster,
            strategy_id=strategy_id(strategy, _model(), cluster),
            plan_id=plan_id(lower(strategy, _model(), cluster), cluster),
        )
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
def losses() -> Callable[[str], list[str]]:
    """The losses that train.py has printed."""
    return functools.partial(re.findall, r"step \d+: ([0-9.]+)")
