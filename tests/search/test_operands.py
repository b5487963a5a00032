"""`tune` takes objects as well as names; objects that cannot reach the ranks are refused with the reason."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autosync.errors import InputError, UnknownNameError
from autosync.launchers.local import LocalLauncher
from autosync.search.operands import cluster_spec_of, model_name, model_spec_of
from autosync.search.proposers.catalogue import open_proposer
from autosync.search.proposers.sampled import Sampled
from autosync.search.study_folder import StudyFolder, read_settings
from autosync.simulators.analytical.simulator import open_analytical
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.task import Task
from autosync.specs.task_file import load_task

if TYPE_CHECKING:
    from conftest import TuneFake

TASKS = Path(__file__).parents[2] / "examples" / "transformer.py"


class OwnProposer(Sampled):
    """A proposer of the user's own."""


class OwnLauncher(LocalLauncher):
    """A launcher of the user's own."""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_objects_are_taken_for_names(tune_fake: TuneFake, model: ModelSpec, cluster: ClusterSpec) -> None:
    own = {"proposer": OwnProposer, "simulator": open_analytical, "launcher": OwnLauncher}
    tuned, _ = tune_fake({}, model=model, cluster=cluster, num_trials=3, **own)
    assert (tuned.model, tuned.cluster.nodes) == (model, cluster.nodes)
    assert tuned.cluster.launcher == f"{__name__}.OwnLauncher"
    assert tuned.summary["proposer"] == f"{__name__}.OwnProposer"
    settings = read_settings(StudyFolder(tuned.folder))
    assert (settings.task, settings.cluster) == (model.name, cluster.name)
    assert load_cluster(str(tuned.folder / "cluster.yaml")) == tuned.cluster
    # The names hold in this process, so the study goes on.
    again, _ = tune_fake({}, resume="s", num_trials=4)
    assert [record.trial for record in again.records][:3] == [record.trial for record in tuned.records]
    assert len(again.records) == 4


def test_a_name_that_no_object_was_given_for_is_unknown() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown proposer 'theirs\.Proposer'"):
        open_proposer("theirs.Proposer", None)  # type: ignore[arg-type]


def test_the_launcher_of_a_cluster_is_replaced(cluster: ClusterSpec) -> None:
    assert cluster_spec_of(cluster, None) is cluster
    assert cluster_spec_of(cluster, "ssh").launcher == "ssh"
    assert cluster_spec_of("local-2", OwnLauncher).is_one_machine


def test_a_function_is_named_by_its_file(model: ModelSpec) -> None:
    function = runpy.run_path(str(TASKS))["task"]
    assert model_name(function) == f"{TASKS}:task"
    assert isinstance(load_task(model_name(function)), Task)
    assert model_spec_of(model, load_cluster("local-2")) is model


def test_a_task_that_ranks_cannot_load_is_refused() -> None:
    with pytest.raises(InputError, match=r"cannot be sent to the ranks \(the function that returns the task"):
        model_name(load_task(str(TASKS)))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="cannot be imported by the ranks"):
        model_name(lambda: load_task(str(TASKS)))
