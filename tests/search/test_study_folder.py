"""The folder of a study: its files, refusals to begin or resume in it, and links that lead elsewhere."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from autosync.datasets.storage import absolute, open_storage
from autosync.datasets.studies import STUDIES_FOLDER, read_study
from autosync.errors import InputError, OperationError
from autosync.search.candidates import Candidate, known_candidates
from autosync.search.measurement_effort import QUICK_EFFORT
from autosync.search.study import Study, begin_study, resume_study
from autosync.search.study_folder import StudySettings, known_study_folder, new_study_folder, read_settings
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model


def _settings(name: str = "s") -> StudySettings:
    return StudySettings(name=name, task="model.yaml", cluster="pair.yaml", seed=3)


@pytest.fixture
def study(model: ModelSpec, cluster: ClusterSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Study]:
    monkeypatch.chdir(tmp_path)
    with begin_study(new_study_folder("s", model, cluster), model, cluster, _settings()) as opened:
        yield opened


@pytest.fixture
def ours(model: ModelSpec, cluster: ClusterSpec) -> list[Candidate]:
    return list(known_candidates(model, cluster, lambda _: True))[:4]


def test_a_study_of_something_else_is_not_taken_over(
    model: ModelSpec, cluster: ClusterSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = absolute("journal:others.log")
    theirs = optuna.create_study(storage=open_storage(url), study_name="theirs")
    theirs.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    optuna.create_study(storage=open_storage(url), study_name="largest", direction="maximize")
    for name in ("theirs", "largest"):
        with pytest.raises(InputError, match=f"the study {name} in the storage is of something else"):
            begin_study(new_study_folder(name, model, cluster), model, cluster, _settings(name), storage=url)
    found = {one.study_name: one for one in optuna.get_all_study_summaries(open_storage(url))}
    assert {name: (one.n_trials, one.user_attrs) for name, one in found.items()} == {
        "theirs": (1, {}),
        "largest": (0, {}),
    }
    assert not list(Path(STUDIES_FOLDER).iterdir())


def test_a_study_that_cannot_be_begun_leaves_nothing(
    model: ModelSpec, cluster: ClusterSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "journal.log")

    with monkeypatch.context() as patched:
        patched.setattr(StudySettings, "write", full)
        with pytest.raises(OSError, match="No space"):
            begin_study(new_study_folder("s", model, cluster), model, cluster, _settings())
    assert not list(Path(STUDIES_FOLDER).iterdir())
    begin_study(new_study_folder("s", model, cluster), model, cluster, _settings()).close()


def test_a_journal_that_is_none_is_not_resumed(
    model: ModelSpec, cluster: ClusterSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = new_study_folder("s", model, cluster)
    begin_study(folder, model, cluster, _settings()).close()
    folder.journal.write_bytes(b"my thesis, without a newline")
    with pytest.raises(InputError, match="is no journal"):
        resume_study(folder, model, cluster)
    assert folder.journal.read_bytes() == b"my thesis, without a newline"


def test_the_folder_says_what_was_tuned(study: Study, model: ModelSpec, cluster: ClusterSpec) -> None:
    assert load_model(str(study.folder.model)) == model
    assert load_cluster(str(study.folder.cluster)) == cluster
    fields = json.loads(study.folder.settings.read_text())
    assert (fields["schema"], fields["seed"]) == ("autosync.study/1", 3)
    assert read_settings(study.folder) == study.settings
    changed = replace(study.settings, effort=QUICK_EFFORT, allow=("lossy",), budget_seconds=1.5)
    changed.write(study.folder)
    assert read_settings(study.folder) == changed


def test_a_study_is_never_replaced(study: Study, model: ModelSpec, cluster: ClusterSpec) -> None:
    before = sorted(study.folder.path.iterdir())
    with pytest.raises(InputError, match=r"the study autosync-studies/s exists .*--resume s"):
        new_study_folder("s", model, cluster)
    with pytest.raises(InputError, match="the study autosync-studies/s exists"):
        begin_study(study.folder, model, cluster, _settings())
    assert sorted(study.folder.path.iterdir()) == before


def test_a_folder_without_a_study_is_free(study: Study, model: ModelSpec, cluster: ClusterSpec) -> None:
    """Killed before the settings were there: nothing was tried, so there is nothing to go on with."""
    study.close()
    study.folder.settings.unlink()
    with pytest.raises(InputError, match="the study autosync-studies/s exists"):
        new_study_folder("s", model, cluster)
    study.folder.journal.unlink()
    with begin_study(new_study_folder("s", model, cluster), model, cluster, _settings()) as again:
        assert again.history() == []
        with pytest.raises(InputError, match="the study autosync-studies/s exists"):
            begin_study(study.folder, model, cluster, _settings())


def test_what_cannot_be_resumed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, study: Study) -> None:
    assert known_study_folder("s").path == Path("autosync-studies/s")
    study.folder.model.unlink()
    with pytest.raises(InputError, match=r"cannot be resumed: model\.yaml missing"):
        known_study_folder("s")
    with pytest.raises(InputError, match="unknown study 'nowhere'"):
        known_study_folder("nowhere")


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "/a", "a/", "../a", "a\nb"])
def test_what_is_no_name_is_refused(name: str, model: ModelSpec, cluster: ClusterSpec) -> None:
    with pytest.raises(InputError, match="is no name of a study"):
        new_study_folder(name, model, cluster)


def test_the_name_that_is_made_up_is_one(model: ModelSpec, cluster: ClusterSpec) -> None:
    odd = replace(model, name="../mine and /yours")
    folder = new_study_folder(None, odd, cluster).path
    assert folder.parent == Path("autosync-studies")
    assert folder.name.startswith("-mine-and-yours-pair-2")


@pytest.mark.parametrize("attribute", ["x", [], {"origin": 1}, {"strategy_id": "a", "origin": "b", "strategy": []}])
def test_trials_that_no_study_writes_are_refused(
    attribute: object, study: Study, ours: list[Candidate], model: ModelSpec, cluster: ClusterSpec
) -> None:
    study.enqueue(ours[:1])
    study.close()
    lines = [json.loads(line) for line in study.folder.journal.read_bytes().splitlines()]
    (created,) = [line for line in lines if "candidate" in line.get("user_attrs", {})]
    created["user_attrs"]["candidate"] = attribute
    # In the order in which Optuna writes it, by which a journal is known.
    study.folder.journal.write_text("".join(json.dumps(one, separators=(",", ":")) + "\n" for one in lines))
    with pytest.raises(InputError, match="trial 0 cannot be understood"):
        resume_study(study.folder, model, cluster)


def test_a_journal_that_cannot_be_replayed_is_refused_with_its_line(
    study: Study, model: ModelSpec, cluster: ClusterSpec
) -> None:
    study.close()
    with study.folder.journal.open("a", encoding="utf-8") as file:
        file.write('{"op_code":0,"worker_id":"w","study_name":"other","directions":["a"]}\n')
    num_lines = len(study.folder.journal.read_bytes().splitlines())
    with pytest.raises(InputError, match=rf"journal.log:{num_lines}: the line cannot be understood"):
        resume_study(study.folder, model, cluster)


@pytest.mark.parametrize("name", ["lock", "journal.log.flock"])
def test_a_lock_that_is_a_link_makes_nothing_elsewhere(
    name: str, study: Study, model: ModelSpec, cluster: ClusterSpec, tmp_path: Path
) -> None:
    study.close()
    lock = study.folder.path / name
    lock.unlink()
    lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OperationError, match=f"{name} cannot be locked: Too many levels of symbolic links"):
        resume_study(study.folder, model, cluster)
    assert not (tmp_path / "elsewhere").exists()


def test_links_that_go_round_in_a_circle_are_told(study: Study) -> None:
    study.close()
    study.folder.journal.unlink()
    study.folder.journal.symlink_to("journal.log")
    # It leads nowhere, and so to nothing outside.
    assert study.folder.links == {}


def test_a_journal_that_cannot_be_read_is_named(study: Study) -> None:
    study.close()
    study.folder.journal.unlink()
    # Its first page is nothing that can be read.
    study.folder.journal.symlink_to("/proc/self/mem")
    with pytest.raises(OSError, match="Input/output error") as raised:
        list(read_study(study.folder.path))
    assert raised.value.filename == str(study.folder.journal)
