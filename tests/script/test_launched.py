"""Unchanged scripts from the command line: `autosync launch`, and torchrun with `-m autosync.run`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPTS = Path(__file__).parent / "scripts"


def _run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def _same(folder: Path, first: str, second: str) -> bool:
    found, expected = (torch.load(folder / f"{name}-0.pt") for name in (first, second))
    for key, values in expected.items():
        torch.testing.assert_close(found[key], values, rtol=1e-9, atol=1e-9)
    return True


def test_two_models_are_launched_with_a_bundle_each(ranks: Any, write_bundle: Any, tmp_path: Path) -> None:
    bundles = [write_bundle(tmp_path, "gan", "bytescheduler")]
    bundles.append(write_bundle(tmp_path, "gan", "bytescheduler", build="build_critic", batch="batch_of_critic"))
    out = ranks.folder / "launched"
    launched = _run("autosync.cli", "launch", bundles[0], "--also", bundles[1], "--", SCRIPTS / "gan.py", out)
    assert launched.returncode == 0, launched.stdout + launched.stderr
    assert ranks.run("gan", None, key="gan-alone").codes == (0, 0)
    assert _same(ranks.folder, "launched", "gan-alone")
    without = _run("autosync.cli", "launch", bundles[0], "--", SCRIPTS / "gan.py", out)
    assert without.returncode == 1
    assert "where a script trains several models, each has a bundle" in without.stdout


@pytest.mark.slow
def test_torchrun_starts_the_door(ranks: Any, write_bundle: Any, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path, "resumes", "bytescheduler")
    script, out = SCRIPTS / "resumes.py", ranks.folder / "torchrun"
    start = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "autosync.run")
    found = _run(*start, script, out, AUTOSYNC_BUNDLE=str(bundle))
    assert found.returncode == 0, found.stderr
    assert ranks.run("resumes", None, key="resumes-alone").codes == (0, 0)
    assert _same(ranks.folder, "torchrun", "resumes-alone")
