"""An interrupted study says where it is kept and how to continue it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autosync.search.planning import plan_tuning
from autosync.search.running_study import running
from autosync.search.tuning_plan import TuningPlan
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import save_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import save_model

if TYPE_CHECKING:
    from conftest import Told


@pytest.fixture
def plan(model: ModelSpec, cluster: ClusterSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TuningPlan:
    monkeypatch.chdir(tmp_path)
    save_model(model, "model.yaml")
    save_cluster(Path("pair.yaml"), cluster)
    return plan_tuning(model="model.yaml", cluster="pair.yaml", study="my study", settings={"proposer": "random"})


def _interrupt(plan: TuningPlan, told: Told) -> None:
    with pytest.raises(KeyboardInterrupt), running(plan, told):
        raise KeyboardInterrupt


def test_ctrl_c_prints_the_command_that_resumes(plan: TuningPlan, told: Told) -> None:
    _interrupt(plan, told)
    kept, resume = told.notes
    assert kept == "no trials are kept in autosync-studies/my study"
    assert resume == "to go on: autosync tune --resume 'my study'"
    *_, option, name = shlex.split(resume)
    assert option == "--resume"
    _interrupt(plan_tuning(model=None, cluster=None, study=None, settings={}, resume=name), told)


def test_a_password_has_to_be_given_again(plan: TuningPlan, told: Told) -> None:
    url = "journal:team.log"
    _interrupt(replace(plan, storage=url, settings=replace(plan.settings, storage="journal:other")), told)
    assert told.notes[-1] == "to go on: autosync tune --resume 'my study' --storage URL"


def test_nothing_is_to_go_on_with_before_there_is_a_study(
    plan: TuningPlan, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TuningPlan, "open_study", interrupt)
    with pytest.raises(KeyboardInterrupt), running(plan, told):
        pass
    assert told.notes == ["no trials are kept in autosync-studies/my study"]
