"""From the command line to weights: profile, divide, launch; the result is that of one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "stages" / "language_model.py"
NUM_STEPS = 6


def _run(folder: Path, *command: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-P", *map(str, command)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_the_example_trains_in_stages_as_in_one_process(tmp_path: Path) -> None:
    autosync = ("-m", "autosync.cli")
    steps = ("--steps", str(NUM_STEPS))
    _run(tmp_path, *autosync, "profile", SCRIPT, "--cuts", "-o", "model.yaml")
    for stages in ((), ("--stage", "0:1", "--stage", "9:0")):
        bundle, result = tmp_path / f"{len(stages)}.yaml", tmp_path / f"{len(stages)}.pt"
        divide = (*autosync, "strategy", "divide", "model.yaml", "--cluster", "local-2", "--bundle", "-o", bundle)
        _run(tmp_path, *divide, *(("--microbatches", "4", *stages) if stages else ()))
        _run(tmp_path, *autosync, "launch", bundle, "--", SCRIPT, *steps, "--result", result)
    _run(tmp_path, SCRIPT, *steps, "--alone", "2", "--result", tmp_path / "alone.pt")
    wanted = torch.load(tmp_path / "alone.pt")
    for name in ("0.pt", "4.pt"):
        found = torch.load(tmp_path / name)
        assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-4), json.dumps(found["losses"])
        for key, value in wanted["state"].items():
            # The true gradient of a key's bias is zero, and Adam makes much of what is left of it by rounding.
            tolerance = 0.06 if key.endswith("query_key_value.bias") else 2e-3
            assert float((found["state"][key] - value).norm()) <= tolerance * float(value.norm()), key
