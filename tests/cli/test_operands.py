"""Commands that train a task tell once that ranks will train on the CPU although this machine has GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autosync.cli import operands
from autosync.specs.cluster import BackendName, ClusterSpec, Node
from autosync.testing.trials import FakeService, FakeSteps

if TYPE_CHECKING:
    from conftest import Shell

TASKS = Path(__file__).parents[1] / "search" / "tiny.py"
TOLD = "ranks will train on the CPU (backend: gloo); this machine has GPUs: backend: nccl trains on them"


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The device files of a machine with a GPU."""
    folder = tmp_path / "dev"
    folder.mkdir()
    for name in ("nvidia1", "nvidiactl"):
        (folder / name).touch()
    monkeypatch.setattr(operands, "DEVICES", folder)
    return folder


@pytest.mark.parametrize(
    ("backend", "launcher", "is_told"),
    [("gloo", "local", True), ("gloo", "ssh", True), ("nccl", "local", False), ("gloo", "testbed", False)],
)
def test_gpus_that_no_rank_uses_are_told(
    devices: Path, capsys: pytest.CaptureFixture[str], backend: BackendName, launcher: str, *, is_told: bool
) -> None:
    node = Node(name="a", host="a", bandwidth_out=1e9, bandwidth_in=1e9)
    cluster = ClusterSpec(name="c", nodes=(node,), launcher=launcher, backend=backend)
    operands.tell_of_idle_gpus(cluster)
    assert capsys.readouterr().err == (f"{TOLD}\n" if is_told else "")
    (devices / "nvidia1").unlink()
    operands.tell_of_idle_gpus(cluster)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("devices")
def test_commands_that_train_a_task_tell_it_once(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    service = FakeService({}, others=FakeSteps(seconds=1))
    monkeypatch.setattr("autosync.search.tuning_plan.TrialService", lambda **_: service)
    assert shell.run("tune", TASKS, "--cluster", "local-2", "--study", "s", "--proposer", "mcmc", "--trials", "1") == 0
    assert shell.err.count(TOLD) == 1
    assert shell.run("compare", TASKS, "--cluster", "local-2", "ddp", "--dry-run") == 0
    assert shell.err.count(TOLD) == 1
    # The compute of a model spec is replayed.
    assert shell.run("compare", "model.yaml", "--cluster", "local-2", "ddp", "--dry-run") == 0
    assert TOLD not in shell.err
