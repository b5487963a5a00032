"""Bundles for the training in train.py, on clusters of any kind; and command lines with a limit."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from autosync.plan.identity import plan_id
from autosync.plan.lowering import lower
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import model_of
from autosync.strategy.bundle import Bundle, save_bundle
from autosync.strategy.canonical import strategy_id
from autosync.strategy.presets import build_preset

TRAIN = Path(__file__).parent / "train.py"
AUTOSYNC = (sys.executable, "-P", "-m", "autosync.cli")


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
