"""What a tuning run is about to do can be asked without doing it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autosync.errors import InputError, UnknownNameError
from autosync.launchers.local import LocalLauncher
from autosync.search.candidates import STOCK_DDP
from autosync.search.plan import TuningPlan, plan_tuning, prior_of
from autosync.simulators.learned.boosted import UNTAUGHT
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import save_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import save_model

if TYPE_CHECKING:
    from conftest import Told


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(
    model: ModelSpec, cluster: ClusterSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_model(model, "model.yaml")
    save_cluster(Path("pair.yaml"), cluster)


def test_it_says_what_would_be_started_and_starts_nothing(
    model: ModelSpec, cluster: ClusterSpec, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(LocalLauncher, "start")
    before = sorted(Path.cwd().iterdir())
    settings = {"seed": 5, "proposer": "random", "num_trials": None}
    plan = plan_tuning(model="model.yaml", cluster="pair.yaml", study="s", settings=settings, progress=told)
    assert (plan.model, plan.cluster, plan.is_new) == (model, cluster, True)
    assert (plan.settings.seed, plan.settings.num_trials, plan.settings.task) == (5, 50, "model.yaml")
    assert plan.circumstances()["is_replayed"]
    assert plan.request is not None
    assert plan.folder.path == Path("autosync-studies/s")
    assert [process.environment["RANK"] for process in plan.request.processes] == ["0", "1"]
    assert plan.request.processes[1].log == Path("autosync-studies/s/logs/ranks-1/rank-1.log")
    first = plan.first(2)
    assert first[0] == STOCK_DDP
    assert first == plan.first(2)
    assert plan.first(0) == []
    assert told.notes == ["reading model.yaml"]
    assert sorted(Path.cwd().iterdir()) == before


def test_what_cannot_be_started_is_told_before_a_task_is_run() -> None:
    node = Node(name="this", host="10.0.0.1", bandwidth_out=1e9, bandwidth_in=1e9)
    save_cluster(Path("far.yaml"), ClusterSpec(name="far", nodes=(node,)))
    with pytest.raises(InputError, match=r"this is on 10\.0\.0\.1"):
        plan_tuning(model="nowhere.py", cluster="far.yaml", study=None, settings={})


def test_a_new_study_needs_a_model_and_a_cluster() -> None:
    with pytest.raises(InputError, match="MODEL is missing"):
        plan_tuning(model=None, cluster="pair.yaml", study=None, settings={})
    with pytest.raises(InputError, match="--cluster is missing"):
        plan_tuning(model="model.yaml", cluster=None, study=None, settings={})


def test_a_prior_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def planned(**settings: str) -> TuningPlan:
        return plan_tuning(model="model.yaml", cluster="pair.yaml", study="s", settings=settings)

    assert planned(prior=str(tmp_path)).settings.simulator == "learned"
    assert planned(prior=str(tmp_path), simulator="linear").settings.simulator == "linear"
    shipped = "autosync.simulators.learned.simulators.shipped_ranker"
    monkeypatch.setattr(shipped, lambda: UNTAUGHT)
    assert (planned().settings.simulator, planned().settings.prior) == ("timeline", None)
    with pytest.raises(InputError, match="nothing ships that fits this version"):
        planned(prior="shipped")
    monkeypatch.setattr(shipped, lambda: replace(UNTAUGHT, share=0.5))
    assert planned(prior="shipped").settings.simulator == "learned"
    assert (planned().settings.simulator, planned().settings.prior) == ("learned", "shipped")
    alone = planned(simulator="timeline").settings
    assert (alone.simulator, alone.prior) == ("timeline", None)
    assert prior_of("shipped") is None
    assert prior_of("records") == Path("records")


def test_without_trials_more_is_simulated() -> None:
    def num_simulated(num_trials: int) -> int:
        settings = {"num_trials": num_trials}
        return plan_tuning(model="model.yaml", cluster="pair.yaml", study="s", settings=settings).ground().num_simulated

    assert num_simulated(0) > 2 * num_simulated(1)


def test_unknown_names_are_told_with_the_known_ones() -> None:
    for settings, words in (({"proposer": "lerned"}, "unknown proposer"), ({"simulator": "no"}, "unknown simulator")):
        plan = plan_tuning(model="model.yaml", cluster="pair.yaml", study="s", settings=settings)
        with pytest.raises(UnknownNameError, match=words):
            plan.proposer()
