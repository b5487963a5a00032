"""Tuning with stages: they are tried, win where they are faster, and the study says who computes what; or why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autosync.cli.verdict import describe
from autosync.report.page import report_page
from autosync.report.study_report import read_study_report
from autosync.search.measurement_effort import Effort
from autosync.search.shown_summary import shown
from autosync.search.study_folder import StudyFolder
from autosync.search.tune import tune
from autosync.search.tuned import Tuned
from autosync.specs.background_load import BackgroundLoad
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import save_cluster
from autosync.specs.model_file import load_model, save_model
from autosync.strategy.bundle import load_bundle
from autosync.testing.trials import FakeService, FakeSteps
from autosync.trials.compare import Design
from autosync.trials.contestant import Contestant
from autosync.trials.policy import Policy
from tests.helpers.staged_models import chain

TASKS = Path(__file__).with_name("divisible.py")
CHEAP = Effort(
    trial=Policy(max_warmup_steps=4, min_steps=4, max_steps=8, budget_seconds=2.0),
    proof=Design(num_steps=12, budget_seconds=5.0),
    num_predicted=2,
)


class _Service(FakeService):
    """Steps with stages take half the time of others, or twice."""

    def __init__(self, seconds: float) -> None:
        super().__init__({}, others=FakeSteps(seconds=0.1, noise=0.005))
        self._seconds = seconds

    def prepare(self, contestant: Contestant) -> None:
        bundle: Any = contestant.bundle
        if bundle is not None and bundle.strategy.stages:
            self._steps[contestant.name] = FakeSteps(seconds=self._seconds, noise=0.005)
        super().prepare(contestant)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(BackgroundLoad, "share", lambda _: 0.0)


def _tuned(seconds: float, cluster: ClusterSpec, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Tuned:
    save_model(chain(6, batch_size=8, seconds=[0.001] * 6), "chain.yaml")
    save_cluster(Path("pair.yaml"), cluster)
    monkeypatch.setattr("autosync.search.tuning_plan.TrialService", lambda **_: _Service(seconds))
    given = {"model": "chain.yaml", "study": "s", "proposer": "mcmc", "num_trials": 14, "patience": 0}
    return tune(cluster="pair.yaml", **{**given, **settings})


def test_a_winner_with_stages_is_handed_over_with_words_and_pictures(
    cluster: ClusterSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = _tuned(0.05, cluster, monkeypatch)
    assert tuned.verdict.beats_default
    strategy = load_bundle(tuned.folder / "best.yaml").strategy
    assert len(strategy.stages) == 2
    winner: Any = tuned.summary["winner"]
    assert [one.partition(":")[0].partition(" (")[0] for one in winner["stages"]] == ["stage 0", "stage 1"]
    assert winner["in_words"].startswith("the work is divided into 2 stages")
    assert "autosync.trainer(task())" in "\n".join(winner["use"])
    stages: Any = tuned.summary["stages"]
    assert stages["searched"]
    assert stages["bound_seconds"] <= 0.05
    text = describe(shown(tuned.summary), tuned.folder)
    assert "who computes: stage 0" in text
    assert "the bounds:" in text
    page = report_page([read_study_report(StudyFolder(tuned.folder))])
    assert "the passes of each rank in a step" in page
    assert "Stage 0 (" in page


def test_where_others_are_faster_the_proof_decides_so(cluster: ClusterSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = _tuned(0.2, cluster, monkeypatch, proposer="random", num_trials=20)
    tried = [record.strategy for record in tuned.records if record.strategy is not None]
    assert any(strategy.get("stages") for strategy in tried)
    assert not tuned.verdict.beats_default
    assert "none with stages more than" in str(tuned.summary["prospect"])


def test_a_model_whose_microbatches_would_train_another_one_says_so(
    cluster: ClusterSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = _tuned(0.05, cluster, monkeypatch, model="resnet20", num_trials=2)
    stages: Any = tuned.summary["stages"]
    assert not stages["searched"]
    assert "layers such as BatchNorm compute over their own microbatch" in stages["why_not"]
    text = " ".join(describe(shown(tuned.summary), tuned.folder).split())
    assert "Strategies that divide the model into stages were not tried: stages for resnet20 (a forward pass" in text


def test_stock_ddp_and_one_worker_have_no_stages_and_nothing_is_said(
    cluster: ClusterSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = _tuned(0.05, cluster, monkeypatch, target="ddp", num_trials=2)
    assert tuned.summary["stages"] == {"searched": False, "why_not": None, "in_words": None}


@pytest.mark.usefixtures("forked_ranks")
def test_a_task_is_profiled_with_cuts_and_trained_with_stages_on_real_ranks() -> None:
    tuned = tune(
        model=f"{TASKS}:task", cluster="local-2", num_trials=0, effort=CHEAP, study="real", simulator="timeline"
    )
    model = load_model(str(tuned.folder / "model.yaml"))
    assert model.timeline.cuts
    assert len(model.timeline.sizes) >= 3
    summary = json.loads((tuned.folder / "summary.json").read_text())
    assert summary["stages"]["searched"]
    assert summary["left_out"] == {}
    assert len(summary["contests"]) >= 3
