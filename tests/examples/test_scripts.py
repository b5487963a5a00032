"""The unchanged scripts of `examples/scripts` train, under stock DDP and by a bundle."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from autosync.plan.bundling import bundled
from autosync.specs.cluster_file import load_cluster
from autosync.specs.profile.run import profile
from autosync.specs.task import Task
from autosync.strategy.bundle import save_bundle
from autosync.strategy.presets import build_preset

SCRIPTS = Path(__file__).parents[2] / "examples" / "scripts"
FRAMEWORKS = {"with_accelerate": "accelerate", "with_lightning": "lightning", "with_trainer": "transformers"}


def run(script: str, folder: Path, bundle: Path | None = None) -> str:
    """Train for a few steps on two ranks in a folder; return the output."""
    folder.mkdir()
    door = () if bundle is None else ("-m", "autosync.run")
    done = subprocess.run(
        (
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *door),
            *(SCRIPTS / f"{script}.py", "--steps", "10"),
        ),
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **({} if bundle is None else {"AUTOSYNC_BUNDLE": f"{bundle}"})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.slow
def test_a_script_with_torchrun_trains_by_a_bundle_as_without(tmp_path: Path) -> None:
    names = runpy.run_path(str(SCRIPTS / "with_torchrun.py"))
    task = Task(
        name="torchrun",
        model=names["Model"],
        batch=lambda generator: torch.randint(names["VOCABULARY"], (4, names["LENGTH"]), generator=generator),
        loss=lambda model, tokens: nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-4),
    )
    model, cluster = profile(task, steps=1), load_cluster("local-2")
    save_bundle(tmp_path / "best.yaml", bundled(build_preset("bytescheduler", model, cluster), model, cluster))
    assert "step 10: loss" in run("with_torchrun", tmp_path / "stock")
    run("with_torchrun", tmp_path / "bundle", tmp_path / "best.yaml")
    expected, found = (torch.load(tmp_path / way / "model.pt") for way in ("stock", "bundle"))
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("script", FRAMEWORKS)
def test_a_script_of_a_framework_trains(script: str, tmp_path: Path) -> None:
    pytest.importorskip(FRAMEWORKS[script])
    run(script, tmp_path / "stock")
