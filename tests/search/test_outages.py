"""A search and a proof in which the machines fail: the cost, and that no strategy is blamed."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autosync.datasets.studies import read_study
from autosync.errors import OperationError
from autosync.launchers.local import LocalLaunch
from autosync.launchers.request import Process
from autosync.search.candidates import STOCK_DDP, candidate_of
from autosync.search.measurement_effort import Effort
from autosync.search.study import Study
from autosync.search.tune import tune
from autosync.search.tuned import Tuned
from autosync.search.tuning_plan import TuningPlan
from autosync.testing.trials import FakeService, FakeSteps
from autosync.trials.compare import Design
from autosync.trials.contestant import Contestant
from autosync.trials.failures import Blame, TrialFailed
from autosync.trials.outages import PAUSES_SECONDS
from autosync.trials.policy import Policy

if TYPE_CHECKING:
    from conftest import Told

    TuneFake = Callable[..., tuple[Tuned, FakeService]]

STOCK = STOCK_DDP.name
TASKS = str(Path(__file__).with_name("tiny.py"))
CHEAP = Effort(
    trial=Policy(max_warmup_steps=4, min_steps=4, max_steps=8, budget_seconds=2.0),
    proof=Design(num_steps=12, budget_seconds=5.0),
)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


LOST = FakeSteps(seconds=0.1, fails_at=5, fails_by="lost_rank", blame="either")


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made, none of which takes any time."""
    made: list[float] = []
    monkeypatch.setattr("autosync.trials.outages.time.sleep", made.append)
    return made


def test_what_the_machines_failed_is_tried_again_and_charged_to_nobody(
    tune_fake: TuneFake, names: list[str], slept: list[float], told: Told
) -> None:
    fails = {
        names[0]: replace(LOST, seconds=0.1, num_failures=1),
        names[2]: replace(LOST, num_failures=1),
        names[3]: replace(LOST, fails_by="raised", blame="machines", num_failures=2),
    }
    tuned, _ = tune_fake(fails, num_trials=6, patience=0, progress=told)
    assert all(record.measurement is not None for record in tuned.records)
    assert len(tuned.records) == 6, "what the machines failed is no trial"
    assert set(names[:4]) <= {candidate_of(record).name for record in tuned.records}
    everything = list(read_study(tuned.folder))
    failed = [record for record in everything if record.failure is not None]
    assert [(candidate_of(record).name, record.failure.kind) for record in failed if record.failure] == [
        (names[0], "infrastructure"),
        (names[2], "infrastructure"),
        (names[3], "infrastructure"),
        (names[3], "infrastructure"),
    ]
    assert tuned.summary["num_outages"] == 4
    assert (tuned.summary["num_failed_trials"], tuned.summary["failures"]) == (0, [])
    assert tuned.summary["outages"][0] == {  # type: ignore[index]
        "trial": failed[0].trial,
        "origin": "baseline:torch_ddp",
        "why": f"infrastructure: rank 0: {STOCK} fails here",
    }
    assert f"{STOCK}: infrastructure: rank 0: {STOCK} fails here; it will be tried again" in told.notes
    assert len(slept) == 4


def test_what_loses_a_rank_again_has_done_it(tune_fake: TuneFake, names: list[str], slept: list[float]) -> None:
    tuned, _ = tune_fake({names[2]: LOST}, num_trials=4, patience=0)
    failed = [record for record in read_study(tuned.folder) if candidate_of(record).name == names[2]]
    assert [record.failure.kind for record in failed if record.failure is not None] == ["infrastructure", "lost_rank"]
    assert (tuned.summary["num_outages"], tuned.summary["num_failed_trials"]) == (1, 1)
    assert slept == [PAUSES_SECONDS[0]]


def test_where_others_lose_ranks_too_it_is_rather_the_machines(
    tune_fake: TuneFake, names: list[str], slept: list[float]
) -> None:
    fails = {names[1]: replace(LOST, num_failures=1), names[2]: replace(LOST, num_failures=2), names[3]: LOST}
    tuned, _ = tune_fake(fails, num_trials=5, patience=0)
    kinds: dict[str, list[str | None]] = {}
    for record in read_study(tuned.folder):
        kinds.setdefault(candidate_of(record).name, []).append(record.failure and record.failure.kind)
    assert kinds[names[2]] == ["infrastructure"] * 2 + [None]
    assert kinds[names[3]] == ["infrastructure"] * 2 + ["lost_rank"]
    assert tuned.summary["num_failed_trials"] == 1
    assert slept == [PAUSES_SECONDS[0]] * 5


def test_machines_that_fail_again_and_again_end_the_run_and_charge_nobody(
    tune_fake: TuneFake, names: list[str], slept: list[float]
) -> None:
    down = FakeSteps(seconds=0.1, fails_at=0, fails_by="launch", blame="machines")
    with pytest.raises(OperationError, match=r"fails here \(3 times in a row\) \(the study is kept in \S+/s\)"):
        tune_fake(dict.fromkeys(names[2:], down), num_trials=6, patience=0)
    assert slept == list(PAUSES_SECONDS)
    records = list(read_study("autosync-studies/s"))
    assert [record.failure.kind for record in records[2:] if record.failure is not None] == ["launch"] * 3
    # The machines are mended: the study goes on, and what was failed is tried.
    tuned, _ = tune_fake({}, resume="s", num_trials=6, patience=0)
    assert tuned.summary["num_failed_trials"] == 0
    assert set(names[2:5]) <= {candidate_of(record).name for record in tuned.records}


def test_strategies_that_all_lose_their_ranks_end_no_run(
    tune_fake: TuneFake, names: list[str], slept: list[float]
) -> None:
    tuned, _ = tune_fake(dict.fromkeys(names[1:4], LOST), num_trials=6, patience=0)
    failed = [record.failure.kind for record in tuned.records if record.failure is not None]
    assert failed == ["lost_rank"] * 3
    assert len(slept) == tuned.summary["num_outages"]
    assert len(slept) >= 3


@pytest.mark.parametrize("blame", ["either", "machines"])
def test_a_proof_goes_on_where_the_machines_fail(
    blame: Blame, tune_fake: TuneFake, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail = FakeService.prepare
    counts: Counter[str] = Counter()

    def at_the_third_time(self: FakeService, contestant: Contestant) -> None:
        counts[contestant.name] += 1
        if counts[contestant.name] == 3 and contestant.name == STOCK:
            self._taken.clear()
            raise TrialFailed("lost_rank", "rank 1 is gone", blame=blame)
        fail(self, contestant)

    monkeypatch.setattr(FakeService, "prepare", at_the_third_time)
    tuned, _ = tune_fake({}, num_trials=3, patience=0)
    assert tuned.summary["left_out"] == {}
    assert counts[STOCK] > 3
    assert slept == [PAUSES_SECONDS[0]]


@pytest.mark.timeout(300)
def test_a_full_disk_and_a_rank_that_dies_at_its_start_cost_a_pause(
    mount_disk: Callable[[int], Path],
    fill_disk: Callable[[Path], Path],
    monkeypatch: pytest.MonkeyPatch,
    told: Told,
) -> None:
    disk = mount_disk(2048)
    (disk / "logs").mkdir()
    begin = TuningPlan.open_study

    def elsewhere(self: TuningPlan) -> Study:
        study = begin(self)
        self.folder.logs.symlink_to(disk / "logs")
        return study

    monkeypatch.setattr(TuningPlan, "open_study", elsewhere)
    filler = fill_disk(disk)
    started: list[subprocess.Popen[bytes]] = []
    add = LocalLaunch.add

    def killed_at_first(self: LocalLaunch, process: Process) -> None:
        add(self, process)
        started.append(self._running[-1])
        if len(started) == 2:
            started[-1].kill()

    def mend(_: float) -> None:
        filler.unlink(missing_ok=True)

    monkeypatch.setattr(LocalLaunch, "add", killed_at_first)
    monkeypatch.setattr("autosync.trials.outages.time.sleep", mend)
    tuned = tune(model=TASKS, cluster="local-2", num_trials=1, effort=CHEAP, study="s", progress=told)
    assert [record.measurement is not None for record in tuned.records] == [True]
    full, lost = [record.failure for record in read_study(tuned.folder) if record.failure is not None]
    assert (full.kind, lost.kind) == ("launch", "launch")
    assert full.message.startswith("the disk of autosync-studies/s/logs/ranks-1 is full")
    assert lost.message == "rank 1 ended at its start: killed by SIGKILL"
    assert (tuned.summary["num_outages"], tuned.summary["num_failed_trials"]) == (2, 0)
    # Two that were lost, and the two that ran.
    assert len(started) == 4
    assert all(process.poll() is not None for process in started)
