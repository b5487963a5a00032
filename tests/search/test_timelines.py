"""Timelines are recorded after the proof, and nothing that goes wrong with them costs the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autosync.pictures.trace_file import read_trace, steps_of
from autosync.search.study_folder import StudyFolder
from autosync.search.timelines import MOST_SECONDS, NUM_STEPS
from autosync.specs.cluster import ClusterSpec
from autosync.testing.trials import FakeService, FakeSteps
from autosync.trials.contestant import Contestant

if TYPE_CHECKING:
    from conftest import Told, TuneFake

SLOW = {"stock DDP": FakeSteps(seconds=0.2, noise=0.005)}


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))


def test_stock_ddp_and_the_winner_are_recorded(tune_fake: TuneFake) -> None:
    tuned, service = tune_fake(SLOW, num_trials=3)
    folder = StudyFolder(tuned.folder)
    assert tuned.verdict.beats_default
    for path in (folder.stock_timeline, folder.winner_timeline):
        (rank,) = read_trace(path)
        assert len(steps_of(rank)) == NUM_STEPS - 1
    recorded = [name for what, name, _ in service.calls if what == "timeline"]
    assert recorded == ["stock DDP", tuned.verdict.winner.name]
    assert not service.prepared


def test_where_stock_ddp_stays_it_alone_is_recorded(tune_fake: TuneFake) -> None:
    tuned, _ = tune_fake({"stock DDP": FakeSteps(seconds=0.05, noise=0.005)}, num_trials=3)
    folder = StudyFolder(tuned.folder)
    assert not tuned.verdict.beats_default
    assert folder.stock_timeline.is_file()
    assert not folder.winner_timeline.exists()


def test_a_replay_records_nothing(tune_fake: TuneFake) -> None:
    tuned, _ = tune_fake(SLOW, num_trials=3)
    replayed, _ = tune_fake({}, replay=str(tuned.folder), study="replayed", num_trials=3)
    assert not StudyFolder(replayed.folder).timelines.exists()


def test_on_gpus_nothing_is_recorded(tune_fake: TuneFake, told: Told, cluster: ClusterSpec) -> None:
    tuned, service = tune_fake(SLOW, cluster=replace(cluster, backend="nccl"), num_trials=3, progress=told)
    assert "timeline" not in {what for what, _, _ in service.calls}
    assert not StudyFolder(tuned.folder).timelines.exists()
    assert "no timelines are recorded: on GPUs the host's clock does not show when work is done" in told.notes


def test_long_steps_are_not_recorded(tune_fake: TuneFake, told: Told) -> None:
    seconds = MOST_SECONDS / NUM_STEPS
    tuned, _ = tune_fake({"stock DDP": FakeSteps(seconds=seconds, noise=0.005)}, num_trials=2, progress=told)
    assert tuned.verdict.beats_default
    assert not StudyFolder(tuned.folder).timelines.exists()
    assert any(line.startswith(f"no timelines are recorded: {NUM_STEPS} steps of each") for line in told.notes)


def test_a_failure_is_told_and_costs_nothing_else(
    tune_fake: TuneFake, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = FakeService.prepare

    def refused(self: FakeService, contestant: Contestant) -> None:
        if contestant.trace is not None:
            self._fail(contestant.name)
        prepare(self, contestant)

    monkeypatch.setattr(FakeService, "prepare", refused)
    tuned, _ = tune_fake(SLOW, num_trials=3, progress=told)
    assert tuned.verdict.beats_default
    assert (tuned.folder / "summary.json").is_file()
    assert not StudyFolder(tuned.folder).timelines.exists()
    assert "no timeline of stock DDP: rank 0: stock DDP fails here" in told.notes


def _before_each_timeline(monkeypatch: pytest.MonkeyPatch, do: Callable[[], None]) -> None:
    prepare = FakeService.prepare

    def prepared(self: FakeService, contestant: Contestant) -> None:
        if contestant.trace is not None:
            do()
        prepare(self, contestant)

    monkeypatch.setattr(FakeService, "prepare", prepared)


def test_an_interruption_while_recording_costs_no_result(
    tune_fake: TuneFake, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    _before_each_timeline(monkeypatch, interrupt)
    tuned, _ = tune_fake(SLOW, num_trials=3, progress=told)
    assert tuned.verdict.beats_default
    assert "no timeline of stock DDP: interrupted" in told.notes
    folder = StudyFolder(Path("autosync-studies/s"))
    assert folder.best.is_file()
    assert json.loads(folder.summary.read_text())["winner"]["beats_stock_ddp"]


def test_a_timeline_that_cannot_be_written_is_told(
    tune_fake: TuneFake, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A file is where the folder of timelines would be.
    _before_each_timeline(monkeypatch, StudyFolder(Path("autosync-studies/s")).timelines.touch)
    tuned, _ = tune_fake(SLOW, num_trials=3, progress=told)
    assert tuned.verdict.beats_default
    assert any(line.startswith("no timeline of stock DDP: ") and "File exists" in line for line in told.notes)
