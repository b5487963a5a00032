"""The plan of a tuning run can be shown without running it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autosync.datasets.schema import Record
from autosync.errors import AutosyncError, DoesNotApplyError, InputError, UnknownNameError
from autosync.launchers.local import LocalLauncher
from autosync.search.candidates import STOCK_DDP
from autosync.search.planning import plan_tuning
from autosync.search.prior import prior_path
from autosync.search.proposers.catalogue import open_proposer
from autosync.search.rounds import Rounds
from autosync.search.tuning_plan import TuningPlan
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
    assert prior_path("shipped") is None
    assert prior_path("records") == Path("records")


def test_without_trials_large_models_are_searched_as_often_as_small_ones() -> None:
    def num_starts(model: str, cluster: str, num_trials: int) -> int:
        settings = {"num_trials": num_trials}
        return plan_tuning(model=model, cluster=cluster, study="s", settings=settings).ground().num_starts

    assert num_starts("acoustic_mlp", "4-hosts", 1) > num_starts("resnet50", "8-hosts", 1) >= 1
    assert num_starts("resnet50", "8-hosts", 0) == num_starts("acoustic_mlp", "4-hosts", 1)


@pytest.mark.parametrize("proposer", ["random", "learned", "mcmc"])
def test_what_it_says_is_tried_first_is(proposer: str, make_record: Callable[..., Record]) -> None:
    num_trials = 5
    settings = {"proposer": proposer, "seed": 4, "num_trials": num_trials, "simulator": "timeline"}
    plan = plan_tuning(model="model.yaml", cluster="pair.yaml", study="s", settings=settings)
    first = plan.first(num_trials)
    assert len(first) >= 2
    with plan.open_study() as study:
        rounds = Rounds(study, open_proposer(proposer, plan.ground()), seed=4)
        for number, expected in enumerate(first):
            asked = rounds.next(num_trials - number)
            assert asked is not None
            assert asked.candidate == expected
            study.tell(make_record(asked.number, asked.candidate, 0.1))


def test_without_trials_it_says_what_is_proved() -> None:
    settings = {"proposer": "random", "num_trials": 0, "simulator": "timeline"}
    plan = plan_tuning(model="model.yaml", cluster="pair.yaml", study="s", settings=settings)
    first = plan.first(10)
    assert len(first) == plan.settings.effort.num_predicted
    predictions = plan.ground().simulator.predict([one.strategy for one in first if one.strategy is not None])
    assert sorted(one.seconds for one in predictions) == [one.seconds for one in predictions]


def test_without_time_only_stock_ddp_is_measured() -> None:
    settings = {"proposer": "random", "budget_seconds": 0.0}
    plan = plan_tuning(model="model.yaml", cluster="pair.yaml", study="s", settings=settings)
    assert plan.first(10) == [STOCK_DDP]


def test_what_a_resumed_study_would_try_is_not_known() -> None:
    settings = {"proposer": "random", "num_trials": 5}
    plan_tuning(model="model.yaml", cluster="pair.yaml", study="s", settings=settings).open_study().close()
    again = plan_tuning(model=None, cluster=None, study=None, settings={}, resume="s")
    assert again.first(5) == []


def test_a_study_that_is_resumed_stays_where_it_was_begun() -> None:
    settings = {"proposer": "random", "num_trials": 5}
    plan_tuning(model="model.yaml", cluster="pair.yaml", study="s", settings=settings).open_study().close()
    with pytest.raises(InputError, match="the trials of s are in the journal in autosync-studies/s"):
        plan_tuning(model=None, cluster=None, study=None, settings={}, resume="s", storage="sqlite:///other.db")
    url = "sqlite:///team.db"
    plan_tuning(model="model.yaml", cluster="pair.yaml", study="t", settings=settings, storage=url).open_study().close()
    assert plan_tuning(model=None, cluster=None, study=None, settings={}, resume="t", storage=url).storage
    with pytest.raises(InputError, match=r"the trials of t are in sqlite:///.*team\.db"):
        plan_tuning(model=None, cluster=None, study=None, settings={}, resume="t", storage="sqlite:///other.db")


def test_a_task_that_is_gone_is_told_before_anything_is_tried(tmp_path: Path) -> None:
    task = tmp_path / "mine.py"
    task.write_text((Path(__file__).parent / "tiny.py").read_text())
    settings = {"proposer": "random", "num_trials": 5}
    plan_tuning(model=str(task), cluster="local-2", study="s", settings=settings).open_study().close()
    task.unlink()
    with pytest.raises(AutosyncError, match=r"mine\.py"):
        plan_tuning(model=None, cluster=None, study=None, settings={}, resume="s")


def test_a_task_that_has_changed_is_told_before_its_times_are_compared_with_older_ones(tmp_path: Path) -> None:
    task = tmp_path / "mine.py"
    text = (Path(__file__).parent / "tiny.py").read_text()
    task.write_text(text)
    settings = {"proposer": "random", "num_trials": 5}
    plan_tuning(model=str(task), cluster="local-2", study="s", settings=settings).open_study().close()
    assert plan_tuning(model=None, cluster=None, study=None, settings={}, resume="s")
    task.write_text(text.replace("momentum=0.9),", "momentum=0.9),\n        clip_norm=0.5,", 1))
    with pytest.raises(InputError, match=r"the clip_norm of .*mine\.py is 0\.5 now .*whose clip_norm is None"):
        plan_tuning(model=None, cluster=None, study=None, settings={}, resume="s")


def test_unknown_names_are_told_with_the_known_ones() -> None:
    for settings, words in (({"proposer": "lerned"}, "unknown proposer"), ({"simulator": "no"}, "unknown simulator")):
        with pytest.raises(UnknownNameError, match=words):
            plan_tuning(model="model.yaml", cluster="pair.yaml", study="s", settings=settings)


def test_stock_ddp_is_no_target_where_batches_weigh(model: ModelSpec) -> None:
    save_model(replace(model, weighs=True), "weighing.yaml")
    words = "--target ddp for tiny .the task weighs its batches, and DDP takes the plain mean of the ranks' gradients"
    with pytest.raises(DoesNotApplyError, match=words):
        plan_tuning(model="weighing.yaml", cluster="pair.yaml", study="s", settings={"target": "ddp"})
    assert plan_tuning(model="weighing.yaml", cluster="pair.yaml", study="s", settings={}).model.weighs


def test_a_storage_that_is_none_is_told_before_a_task_is_run(told: Told) -> None:
    Path("notes.txt").write_text("my thesis", encoding="utf-8")
    settings = {"proposer": "random", "num_trials": 5}
    with pytest.raises(InputError, match="the storage is no journal"):
        plan_tuning(
            model="task.py",
            cluster="pair.yaml",
            study="s",
            settings=settings,
            storage="journal:notes.txt",
            progress=told,
        )
    assert told.lines == []
    assert not Path("autosync-studies").exists()
