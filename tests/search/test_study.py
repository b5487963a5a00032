"""A study's folder: never replaced, readable at any time, its trials in a real Optuna journal."""

from collections.abc import Callable
from pathlib import Path

import pytest

from autosync.datasets.schema import Record
from autosync.datasets.studies import read_study
from autosync.errors import InputError
from autosync.search.candidates import STOCK_DDP, default_as_strategy
from autosync.search.study import Study, new_study_folder
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model

MakeRecord = Callable[[int, object, float | None], Record]


@pytest.fixture
def study(model: ModelSpec, cluster: ClusterSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.chdir(tmp_path)
    return Study(new_study_folder("s", model, cluster), model, cluster, {"seed": 3})


def test_trials_are_in_the_journal_when_told(
    study: Study, model: ModelSpec, cluster: ClusterSpec, make_record: MakeRecord
) -> None:
    ours = default_as_strategy(model, cluster)
    records = [make_record(study.ask(), STOCK_DDP, 0.5), make_record(study.ask(), ours, None)]
    for told, record in enumerate(records):
        study.tell(record)
        assert list(read_study(study.folder.path)) == records[: told + 1]


def test_trials_may_be_told_in_any_order(study: Study, make_record: MakeRecord) -> None:
    assert [study.ask(), study.ask()] == [0, 1]
    study.tell(make_record(1, STOCK_DDP, 0.5))
    assert [record.trial for record in read_study(study.folder.path)] == [1]


def test_a_study_without_trials_can_be_read(study: Study) -> None:
    assert list(read_study(study.folder.path)) == []


def test_a_trial_under_way_is_no_record(study: Study) -> None:
    study.ask()
    assert list(read_study(study.folder.path)) == []


def test_the_folder_says_what_was_tuned(study: Study, model: ModelSpec, cluster: ClusterSpec) -> None:
    assert load_model(str(study.folder.model)) == model
    assert load_cluster(str(study.folder.cluster)) == cluster
    assert '"schema": "autosync.study/1"' in study.folder.settings.read_text()
    assert '"seed": 3' in study.folder.settings.read_text()


def test_a_study_is_never_replaced(study: Study, model: ModelSpec, cluster: ClusterSpec) -> None:
    before = sorted(study.folder.path.iterdir())
    with pytest.raises(InputError, match="the study autosync-studies/s exists"):
        new_study_folder("s", model, cluster)
    with pytest.raises(InputError, match="the study autosync-studies/s exists"):
        Study(study.folder, model, cluster, {})
    assert sorted(study.folder.path.iterdir()) == before


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "/a", "a/", "../a", "a\nb"])
def test_what_is_no_name_is_refused(name: str, model: ModelSpec, cluster: ClusterSpec) -> None:
    with pytest.raises(InputError, match="is no name of a study"):
        new_study_folder(name, model, cluster)


def test_the_name_that_is_made_up_is_one(model: ModelSpec, cluster: ClusterSpec) -> None:
    from dataclasses import replace

    odd = replace(model, name="../mine and /yours")
    folder = new_study_folder(None, odd, cluster).path
    assert folder.parent == Path("autosync-studies")
    assert folder.name.startswith("-mine-and-yours-pair-2")
