"""A disk that fills up in the middle of a run: the node and the file are named, what was done is kept, nothing runs on.

Each disk is a file system in memory, mounted for the test and of a few pages.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autosync.cli import main
from autosync.datasets.studies import read_study
from autosync.disk_errors import is_full
from autosync.errors import OperationError
from autosync.launchers.script_run import ScriptRun, TrainingScript
from autosync.plan.bundling import bundled
from autosync.search import tuning_plan
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import save_cluster
from autosync.specs.model_file import load_model, model_of
from autosync.strategy.presets import build_preset
from autosync.testbed import live
from autosync.testbed.requirements import find_folders
from autosync.testing.trials import FakeService, FakeSteps
from autosync.trials.contestant import Contestant
from autosync.trials.service import StepSamples, TrialFailed, TrialService

TASK = str(Path(__file__).with_name("task.py"))
TARGET = "mobilenet_v2@x0.1"
LIMIT_SECONDS = 30.0

MountDisk = Callable[[int], Path]


@pytest.fixture
def emulated() -> Iterator[ClusterSpec]:
    try:
        find_folders()
    except OperationError as error:
        pytest.skip(str(error))
    nodes = tuple(Node(name=name, host=name, bandwidth_out=125e6, bandwidth_in=125e6) for name in ("n0", "n1"))
    made = ClusterSpec(name=f"test-{secrets.token_hex(4)}", nodes=nodes, launcher="testbed")
    yield made
    live.down(made, force=True)


@pytest.mark.slow
def test_a_nodes_trace_has_no_room(
    emulated: ClusterSpec, started: list[int], mount_disk: MountDisk, tmp_path: Path
) -> None:
    model = load_model(TARGET)
    strategy = build_preset("ddp", model, emulated)
    bundle = bundled(strategy, model, emulated)
    # The hosts of a testbed have one file system; the second one's trace leads to a disk of its own.
    file = mount_disk(16) / "trace.json"
    (tmp_path / "t-rank1.json").symlink_to(file)
    traced = Contestant(name="ddp", bundle=bundle, trace=tmp_path / "t.json")
    with TrialService(target=TARGET, model=model, cluster=emulated, folder=tmp_path / "f") as service:
        service.prepare(traced)
        began = time.monotonic()
        with pytest.raises(TrialFailed) as failed:
            service.run("ddp", 100)
        assert time.monotonic() - began < LIMIT_SECONDS
        assert (failed.value.kind, failed.value.blame) == ("raised", "machines")
        told = f"rank 1 on n1: no trace can be written to {tmp_path / 't-rank1.json'}: No space left on device"
        assert told in failed.value.message
        service.prepare(Contestant(name="stock"))
        assert service.run("stock", 1).step_seconds, "others are none the worse for it"
    assert len(started) == 4


def test_a_ranks_log_has_no_room(
    cluster: ClusterSpec, started: list[int], mount_disk: MountDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT_FILE", str(tmp_path / "fault"))
    (tmp_path / "fault").write_text("shout")
    folder = mount_disk(256) / "f"
    stock = Contestant(name="stock")
    with TrialService(target=TASK, model=model_of(TASK), cluster=cluster, folder=folder) as service:
        service.prepare(stock)
        with pytest.raises(TrialFailed) as failed:
            service.run("stock", 3)
        (log,) = folder.glob("*/rank-1.log")
        assert failed.value.message.startswith("rank 1: ")
        assert "No space left on device" in failed.value.message
        assert failed.value.message.endswith(f": the disk of {log} is full")
        assert failed.value.blame == "machines"
        # The next trial's ranks would have no room either.
        with pytest.raises(TrialFailed, match=r"the disk of \S+ranks-2 is full") as ended:
            service.prepare(stock)
        assert (ended.value.kind, ended.value.blame) == ("launch", "machines")
        assert len(started) == 2
        (tmp_path / "fault").unlink()
        log.unlink()
        service.prepare(stock)
        assert service.run("stock", 1).step_seconds, "with room all is well"


class _Filling(FakeService):
    """Runs nothing; behind the third contestant the disk is full."""

    def __init__(self, fill_disk: Callable[[], Path]) -> None:
        super().__init__({}, others=FakeSteps(seconds=0.1, noise=0.002))
        self._fill_disk = fill_disk
        self._num_prepared = 0
        self.filler: Path | None = None

    def prepare(self, contestant: Contestant) -> None:
        self._num_prepared += 1
        super().prepare(contestant)

    def run(self, name: str, num_steps: int, *, settle: bool = False) -> StepSamples:
        if self._num_prepared > 3 and self.filler is None:
            self.filler = self._fill_disk()
        return super().run(name, num_steps, settle=settle)


@pytest.mark.slow
def test_the_study_has_no_room(
    cluster: ClusterSpec,
    mount_disk: MountDisk,
    fill_disk: Callable[[Path], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = mount_disk(2048)
    monkeypatch.chdir(folder)
    save_cluster(Path("pair.yaml"), cluster)
    service = _Filling(lambda: fill_disk(folder))
    monkeypatch.setattr(tuning_plan, "TrialService", lambda **_: service)
    tune = ["tune", "mobilenet_v2@x0.1", "--cluster", "pair.yaml", "--effort", "quick", "--trials", "6", "--study", "s"]
    assert main.run(tune) == 1
    study = folder / "autosync-studies" / "s"
    assert f"error: {study.relative_to(folder)}/journal.log: No space left on device" in capsys.readouterr().err
    kept = list(read_study(study))
    assert len(kept) == 3
    assert service.filler is not None
    assert is_full(folder)
    service.filler.unlink()
    fake = FakeService({}, others=FakeSteps(seconds=0.1, noise=0.002))
    monkeypatch.setattr(tuning_plan, "TrialService", lambda **_: fake)
    assert main.run(["tune", "--resume", "s"]) == 0, capsys.readouterr().err
    found = list(read_study(study))
    assert found[:3] == kept
    assert len(found) >= 6


def test_the_log_of_a_script_has_no_room(emulated: ClusterSpec, mount_disk: MountDisk, tmp_path: Path) -> None:
    logs = mount_disk(64)
    shout = "import os, time; os.environ['RANK'] == '1' and print('x' * 10**6, flush=True); time.sleep(60)"
    script = TrainingScript(command=(sys.executable, "-c", shout))
    began = time.monotonic()
    ended = ScriptRun(emulated, script, logs, show=lambda _: None).run(started=lambda _: None)
    assert time.monotonic() - began < LIMIT_SECONDS
    assert ended.code == 1
    assert ended.words[0].startswith("rank 1 on n1: exit code 1")
    assert ended.words[0].endswith(f": the disk of {logs / 'rank-1.log'} is full")
