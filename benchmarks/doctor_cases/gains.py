"""Compares the largest gain that the doctor says is possible with the gain that tuning reaches.

The models of cases whose time goes to transfers are replayed, so that both can run on them: the doctor on a model spec,
and `autosync tune` with a budget. A speedup is that over stock DDP, in the doctor's run and in the proof of the tuning.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autosync.specs.cluster_file import save_cluster
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.specs.model_file import save_model
from benchmarks.doctor_cases.cases import MIB, Case, Training

KINDS_WITH_GAIN = ("exposed_communication", "slow_link", "slow_uplink", "bucket_sizes")
MOST_EXCEEDED = 0.03
"""Tuning may gain this share more than the doctor said is possible: both are measured."""

_LIMIT_SECONDS = 1800.0
_UPDATE_SECONDS = 0.002


def gain_cases(cases: Sequence[Case], count: int) -> list[Case]:
    """Return the first cases whose time goes to transfers. The cluster must be as its file says, for `tune` too."""
    return [case for case in cases if case.kind in KINDS_WITH_GAIN and case.draw().fault is None][:count]


def model_of_training(name: str, training: Training) -> ModelSpec:
    """Return the spec of the model that `planted.py` trains with these arguments."""
    count = training.layers
    shape = (max(int(training.mebibytes * MIB / 4 / count), 1),)
    names = [f"layers.{number}.weight" for number in range(count)]
    variables = tuple(
        Variable(name=one, shape=shape, use=number, ready=count - 1 - number) for number, one in enumerate(names)
    )

    def passing(seconds: float, order: Sequence[str]) -> tuple[Segment, ...]:
        return tuple(Segment(module=one.rpartition(".")[0], seconds=seconds / count, variables=(one,)) for one in order)

    return ModelSpec(
        name=name,
        optimizer=OptimizerSpec(name="SGD"),
        variables=variables,
        timeline=Timeline(
            device="cpu",
            source="computed",
            forward=passing(training.forward_seconds, names),
            backward=passing(training.backward_seconds, names[::-1]),
            optimizer=tuple(replace(one, module="") for one in passing(_UPDATE_SECONDS, names)),
        ),
    )


def compared_gains(case: Case, budget: str) -> dict[str, Any]:
    """Return the doctor's largest gain, the gain of tuning, and the share by which tuning exceeds the doctor's."""
    planted = case.draw()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        save_model(model_of_training(case.name, planted.training), folder / "model.yaml")
        save_cluster(folder / "cluster.yaml", planted.cluster)
        doctor = _document(folder, "doctor", "model.yaml", "--cluster", "cluster.yaml", "--json")
        tuned = _document(folder, "tune", "model.yaml", "--cluster", "cluster.yaml", "--budget", budget, "--json")
    if "failure" in doctor or "failure" in tuned:
        return {"exceeded_by": None, "doctor": doctor, "tune": tuned}
    most = doctor["most_speedup"]
    speedup = tuned["winner"]["speedup_over_stock_ddp"]
    reached = 1.0 if speedup is None else speedup["value"]
    return {
        "most_speedup": most,
        "tuned_speedup": reached,
        "exceeded_by": None if most is None else reached / most - 1,
        "bound_seconds": doctor["bound_seconds"],
        "step_seconds": doctor["step_seconds"],
    }


def _document(folder: Path, *words: str) -> dict[str, Any]:
    """Return the document that a command of autosync prints, or the reason why there is none."""
    command = (sys.executable, "-P", "-m", "autosync.cli", *words)
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"failure": f"{words[0]} took longer than {_LIMIT_SECONDS:g} s"}
    if done.returncode:
        return {"failure": done.stderr.strip()}
    found: dict[str, Any] = json.loads(done.stdout)
    return found
