"""A study's folder and its trials: never replaced, readable at any time, and complete after any interruption."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autosync.datasets.schema import Record, record_to_plain
from autosync.datasets.storage import absolute, open_storage, without_password
from autosync.datasets.studies import read_study
from autosync.errors import InputError, OperationError
from autosync.search.candidates import STOCK_DDP, Candidate, known_candidates
from autosync.search.study import Study, begin_study, resume_study
from autosync.search.study_folder import StudyFolder, StudySettings, new_study_folder
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model

MakeRecord = Callable[[int, object, float | None], Record]


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


def test_trials_are_in_the_journal_when_told(study: Study, ours: list[Candidate], make_record: MakeRecord) -> None:
    study.enqueue([STOCK_DDP, ours[0]])
    told = []
    for seconds in (0.5, None):
        asked = study.ask()
        assert asked is not None
        record = make_record(asked.number, asked.candidate, seconds)
        study.tell(record)
        told.append(record)
        assert list(read_study(study.folder.path)) == told
        assert study.history() == told
    assert study.ask() is None


def test_what_waits_is_asked_in_order_and_once(study: Study, ours: list[Candidate]) -> None:
    study.enqueue(ours)
    assert study.taken() == {one.strategy_id for one in ours}
    asked = [study.ask() for _ in ours]
    assert [one.candidate for one in asked if one] == ours
    assert study.num_under_way() == len(ours)
    assert study.ask() is None
    assert study.history() == []
    assert list(read_study(study.folder.path)) == []


def test_what_two_tuners_propose_is_tried_once(study: Study, ours: list[Candidate], make_record: MakeRecord) -> None:
    study.enqueue([ours[0], ours[1], ours[0]])
    study.enqueue([ours[1], ours[2]])
    tried = []
    while (asked := study.ask()) is not None:
        tried.append(asked.candidate)
        study.tell(make_record(asked.number, asked.candidate, 0.1))
    assert tried == ours[:3]
    # Those that were passed over are no records, nor are they missed.
    assert len(list(read_study(study.folder.path))) == 3


def test_an_interrupted_trial_is_tried_again(
    study: Study, ours: list[Candidate], make_record: MakeRecord, model: ModelSpec, cluster: ClusterSpec
) -> None:
    study.enqueue(ours[:3])
    done, lost = study.ask(), study.ask()
    assert done is not None
    assert lost is not None
    study.tell(make_record(done.number, done.candidate, 0.1))
    study.close()
    again = resume_study(study.folder, model, cluster)
    assert [record.strategy_id for record in again.history()] == [ours[0].strategy_id]
    left = [again.ask(), again.ask()]
    assert {one.candidate.strategy_id for one in left if one} == {ours[1].strategy_id, ours[2].strategy_id}
    assert again.ask() is None
    again.close()
    # Interrupted once more, both come back, and neither twice.
    with resume_study(study.folder, model, cluster) as once_more:
        assert len(once_more.taken()) == 2
    assert [record.trial for record in read_study(study.folder.path)] == [done.number]


def test_a_trial_that_ended_unheard_is_no_trial_to_repeat(
    study: Study, ours: list[Candidate], make_record: MakeRecord, model: ModelSpec, cluster: ClusterSpec
) -> None:
    """Killed between the two writes of `tell`: the record is there, the state is not."""
    study.enqueue(ours[:2])
    for seconds in (0.1, None):
        asked = study.ask()
        assert asked is not None
        record = make_record(asked.number, asked.candidate, seconds)
        study._mark(asked.number, "record", record_to_plain(record))
    study.close()
    with resume_study(study.folder, model, cluster) as again:
        assert len(again.history()) == 2
        assert again.taken() == set()
        assert again.ask() is None


def test_a_trial_without_anything_in_it_is_withdrawn(study: Study, model: ModelSpec, cluster: ClusterSpec) -> None:
    study._optuna.ask()
    study.close()
    with resume_study(study.folder, model, cluster) as again:
        assert again.ask() is None
    assert list(read_study(study.folder.path)) == []


def test_a_journal_that_breaks_off_is_mended(
    study: Study, ours: list[Candidate], make_record: MakeRecord, model: ModelSpec, cluster: ClusterSpec
) -> None:
    study.enqueue(ours[:2])
    asked = study.ask()
    assert asked is not None
    study.tell(make_record(asked.number, asked.candidate, 0.1))
    study.close()
    whole = study.folder.journal.read_bytes()
    study.folder.journal.write_bytes(whole + b'{"op_code": 4, "wor')
    with resume_study(study.folder, model, cluster) as again:
        assert len(again.history()) == 1
        asked = again.ask()
        assert asked is not None
        assert asked.candidate == ours[1]
        again.tell(make_record(asked.number, asked.candidate, 0.2))
    assert len(list(read_study(study.folder.path))) == 2


def test_what_is_measured_for_a_proof_is_kept_and_not_counted(
    study: Study, ours: list[Candidate], make_record: MakeRecord
) -> None:
    study.enqueue([ours[0], ours[1], ours[2]])
    first = study.ask()
    assert first is not None
    study.tell(make_record(first.number, first.candidate, 0.1))
    begun = study.begin_for_proof(ours[1])
    assert (begun.candidate, study.num_under_way()) == (ours[1], 0)
    assert ours[1].strategy_id in study.taken()
    study.tell(make_record(begun.number, begun.candidate, 0.2))
    assert [record.strategy_id for record in study.searched()] == [ours[0].strategy_id]
    assert [record.strategy_id for record in study.for_proof()] == [ours[1].strategy_id]
    assert study.history() == [*study.searched(), *study.for_proof()]
    assert list(read_study(study.folder.path)) == study.history()
    # It overtook the one that waited, which is not tried any more.
    left = study.ask()
    assert left is not None
    assert left.candidate == ours[2]
    assert study.ask() is None


def test_what_was_interrupted_for_a_proof_is_left_to_the_next_proof(
    study: Study, ours: list[Candidate], make_record: MakeRecord, model: ModelSpec, cluster: ClusterSpec
) -> None:
    ended, lost = study.begin_for_proof(ours[0]), study.begin_for_proof(ours[1])
    study._mark(ended.number, "record", record_to_plain(make_record(ended.number, ended.candidate, 0.1)))
    study.close()
    with resume_study(study.folder, model, cluster) as again:
        assert [record.trial for record in again.for_proof()] == [ended.number]
        assert again.taken() == set()
        assert again.ask() is None
        assert again.begin_for_proof(ours[1]).number > lost.number


def test_one_process_tunes_in_a_folder(study: Study, model: ModelSpec, cluster: ClusterSpec) -> None:
    with pytest.raises(OperationError, match="is being tuned by another process"):
        resume_study(study.folder, model, cluster)
    study.close()
    resume_study(study.folder, model, cluster).close()


def test_folders_share_a_storage(
    study: Study,
    ours: list[Candidate],
    make_record: MakeRecord,
    tmp_path: Path,
) -> None:
    model, cluster = load_model(str(study.folder.model)), load_cluster(str(study.folder.cluster))
    url = f"sqlite:///{tmp_path / 'team.db'}"
    tuners = []
    for place in ("here", "there"):
        folder = StudyFolder(tmp_path / place / "team")
        tuners.append(begin_study(folder, model, cluster, _settings("team"), storage=url))
    here, there = tuners
    here.enqueue(ours[:3])
    first, second = here.ask(), there.ask()
    assert first is not None
    assert second is not None
    assert (first.candidate, second.candidate) == (ours[0], ours[1])
    here.tell(make_record(first.number, first.candidate, 0.1))
    assert there.history() == here.history()
    for tuner in tuners:
        replace(tuner.settings, storage=url).write(tuner.folder)
        assert list(read_study(tuner.folder.path)) == here.history()
    assert there.num_under_way() == 1
    # One of them dies: its trial comes back with it alone.
    there.close()
    assert here.ask() is not None
    assert here.ask() is None
    with resume_study(there.folder, model, cluster) as back:
        again = back.ask()
        assert again is not None
        assert again.candidate == ours[1]
    here.close()
    other = replace(model, name="other", optimizer=replace(model.optimizer, name="Adam"))
    third = StudyFolder(tmp_path / "third" / "team")
    with pytest.raises(InputError, match="the study team is of another model"):
        begin_study(third, other, cluster, _settings("team"), storage=url)
    # The name is still free for who names the right model.
    begin_study(third, model, cluster, _settings("team"), storage=url).close()


def test_a_storage_that_fails_is_named(model: ModelSpec, cluster: ClusterSpec, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'team.db'}"
    settings = replace(_settings("team"), storage=url)
    study = begin_study(StudyFolder(tmp_path / "here" / "team"), model, cluster, settings, storage=url)
    with contextlib.closing(sqlite3.connect(tmp_path / "team.db")) as database:
        database.executescript("PRAGMA foreign_keys = OFF; DROP TABLE trials")
    with pytest.raises(OperationError, match=r"the storage sqlite:.*team\.db failed: .*no such table"), study:
        study.ask()


def test_what_a_machine_that_is_gone_was_trying_others_may_try(
    model: ModelSpec, cluster: ClusterSpec, ours: list[Candidate], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'team.db'}"
    here, there = (
        begin_study(StudyFolder(tmp_path / name / "team"), model, cluster, _settings("team"), storage=url)
        for name in ("one", "other")
    )
    here.enqueue(ours[:1])
    assert there.ask() is not None
    assert here.taken() == {ours[0].strategy_id}
    here.enqueue(ours[:1])
    assert here.ask() is None, "the other one is at it"
    monkeypatch.setattr("autosync.search.trial_attributes.STALE_SECONDS", -1.0)
    assert (here.taken(), here.num_under_way()) == (set(), 0)
    here.enqueue(ours[:1])
    asked = here.ask()
    assert asked is not None
    assert asked.candidate == ours[0]
    here.close()
    there.close()


def test_a_shared_study_is_read_by_its_name_from_anywhere(
    study: Study, ours: list[Candidate], make_record: MakeRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, cluster = load_model(str(study.folder.model)), load_cluster(str(study.folder.cluster))
    monkeypatch.chdir(tmp_path)
    for relative in ("sqlite:///team.db", "journal:./team.log"):
        folder = StudyFolder(tmp_path / f"as-{relative[:4]}-had-it")
        url = absolute(relative)
        with begin_study(folder, model, cluster, replace(_settings("team"), storage=url), storage=url) as shared:
            shared.enqueue(ours[:1])
            asked = shared.ask()
            assert asked is not None
            shared.tell(make_record(asked.number, asked.candidate, 0.1))
            told = shared.history()
        monkeypatch.chdir(folder.path)
        assert list(read_study(".")) == told
        monkeypatch.chdir(tmp_path)
        Path(relative.partition(":")[2].removeprefix("///")).unlink()
        with pytest.raises(InputError, match=r"team\.(db|log)"):
            list(read_study(folder.path))
        assert not list(tmp_path.glob("team.*[bg]")), "reading makes nothing"


@pytest.mark.parametrize(
    "url",
    ["postgresql://me@host/db", "sqlite:///:memory:", "sqlite://", "sqlite:///file:a.db?mode=ro&uri=true", "nowhere"],
)
def test_what_is_no_file_of_ours_keeps_its_url(url: str) -> None:
    assert absolute(url) == url


@pytest.mark.parametrize("url", ["nowhere", "sqlite:////nowhere/at/all.db"])
def test_a_storage_that_cannot_be_had_takes_no_name(
    url: str, model: ModelSpec, cluster: ClusterSpec, tmp_path: Path
) -> None:
    folder = StudyFolder(tmp_path / "team")
    with pytest.raises((InputError, OperationError)):
        begin_study(folder, model, cluster, _settings("team"), storage=url)
    begin_study(folder, model, cluster, _settings("team")).close()


@pytest.mark.parametrize("url", ["postgresql://[x/db", "journal:", "sqlite:////nowhere/a.db?timeout=1"])
def test_urls_that_name_nothing_are_refused(url: str) -> None:
    with pytest.raises(InputError):
        open_storage(url, is_new_allowed=False)


def test_storages_are_told_from_what_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'nowhere' is no storage"):
        open_storage("nowhere")
    with pytest.raises((InputError, OperationError), match=r"://me@nohost/db") as raised:
        open_storage("postgresql://me:secret@nohost/db")
    assert "secret" not in str(raised.value)
    assert without_password("postgresql://me:secret@host:5432/db") == "postgresql://me@host:5432/db"
    assert without_password("postgresql://me:pa/s?s#@host/db") == "postgresql://me@host/db"
    assert without_password("postgresql://host/db?user=me&password=secret") == "postgresql://host/db?user=me"
    assert without_password("sqlite:///a.db") == "sqlite:///a.db"
    assert without_password("journal:a.log") == "journal:a.log"
    with pytest.raises(InputError, match="is no storage: it cannot be read"):
        without_password("postgresql//me:secret@host")
    open_storage(f"journal:{tmp_path / 'shared.log'}")
