"""What a tuning run is about to do can be asked without doing it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autosync.errors import InputError
from autosync.launchers.local import LocalLauncher
from autosync.search.candidates import candidates
from autosync.search.plan import plan_tuning
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
    plan = plan_tuning(model="model.yaml", cluster="pair.yaml", study="s", seed=5, progress=told)
    assert (plan.model, plan.cluster, plan.is_replayed) == (model, cluster, True)
    assert plan.folder.path == Path("autosync-studies/s")
    assert [process.environment["RANK"] for process in plan.request.processes] == ["0", "1"]
    assert plan.request.processes[1].log == Path("autosync-studies/s/logs/ranks-1/rank-1.log")
    first = list(itertools.islice(plan.candidates(), 12))
    assert first == list(itertools.islice(candidates(model, cluster, 5), 12))
    assert told.notes == ["reading model.yaml"]
    assert sorted(Path.cwd().iterdir()) == before


def test_what_cannot_be_started_is_told_before_a_task_is_run() -> None:
    node = Node(name="this", host="10.0.0.1", bandwidth_out=1e9, bandwidth_in=1e9)
    save_cluster(Path("far.yaml"), ClusterSpec(name="far", nodes=(node,)))
    with pytest.raises(InputError, match=r"this is on 10\.0\.0\.1"):
        plan_tuning(model="nowhere.py", cluster="far.yaml", study=None, seed=0)
