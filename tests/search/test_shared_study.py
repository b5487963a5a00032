"""Tuners that share a study try the same kinds of strategies, and agree on when a trial began."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState, create_trial

from autosync.datasets.schema import Failure, Record
from autosync.errors import InputError
from autosync.search.candidates import Candidate, known_candidates
from autosync.search.study import Study, begin_study, resume_study
from autosync.search.study_folder import StudyFolder, StudySettings
from autosync.search.trial_attributes import started
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cuts import StageCut
from autosync.specs.model import ModelSpec, Segment, Timeline

Begin = Callable[..., Study]
MakeRecord = Callable[[int, object, float | None], Record]


@pytest.fixture
def begin(model: ModelSpec, cluster: ClusterSpec, tmp_path: Path) -> Iterator[Begin]:
    """Begins the study `team` in a folder of this name, with these settings; all share a storage."""
    url = f"journal:{tmp_path / 'team.log'}"
    begun: list[Study] = []

    def begin(name: str, **settings: Any) -> Study:
        given = StudySettings(name="team", task="model.yaml", cluster="pair.yaml", storage=url, **settings)
        study = begin_study(StudyFolder(tmp_path / name / "team"), model, cluster, given, storage=url)
        begun.append(study)
        return study

    yield begin
    for study in begun:
        study.close()


@pytest.fixture
def ours(model: ModelSpec, cluster: ClusterSpec) -> list[Candidate]:
    return list(known_candidates(model, cluster, lambda _: True))[:4]


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"allow": ("stale", "lossy")}, {}, "begun with --allow lossy,stale (.*); tune with --allow lossy,stale, or"),
        ({}, {"allow": ("lossy",)}, "begun without --allow (.*); tune without --allow, or --study NAME"),
        ({}, {"target": "ddp"}, "begun with --target autosync (.*)"),
        ({"target": "ddp"}, {}, "begun with --target ddp (.*)"),
    ],
)
def test_other_kinds_of_strategies_are_refused(
    first: dict[str, Any], second: dict[str, Any], words: str, begin: Begin, tmp_path: Path
) -> None:
    begin("here", **first)
    with pytest.raises(InputError, match=f"the study team was {words}"):
        begin("there", **second)
    # The name is still free.
    begin("there", **first)


def _cut(model: ModelSpec, *places: int) -> ModelSpec:
    """The model with three modules, and cuts before some of them."""
    forward = tuple(Segment(module=f"m{n}", seconds=1.0, variables=(v.name,)) for n, v in enumerate(model.variables))
    cuts = tuple(StageCut(before=place, num_bytes=8) for place in places)
    return replace(model, timeline=replace(model.timeline, forward=forward, cuts=cuts))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model: replace(model, batch_size=7), "another batch size"),
        (lambda model: _cut(model, 2), "a model that is cut into other layers"),
        (lambda model: replace(model, timeline=_renamed(model)), "a model that is cut into other layers"),
    ],
)
def test_what_stages_depend_on_is_the_same_for_all(
    change: Callable[[ModelSpec], ModelSpec], words: str, model: ModelSpec, cluster: ClusterSpec, tmp_path: Path
) -> None:
    url = f"journal:{tmp_path / 'team.log'}"
    settings = StudySettings(name="team", task="model.yaml", cluster="pair.yaml", storage=url)
    first = _cut(model, 1)
    begin_study(StudyFolder(tmp_path / "here" / "team"), first, cluster, settings, storage=url).close()
    with pytest.raises(InputError, match=f"the study team is of {words}"):
        begin_study(StudyFolder(tmp_path / "there" / "team"), change(first), cluster, settings, storage=url)
    # Bytes of activations are measured, and may differ.
    larger = replace(first.timeline.cuts[0], num_bytes=9, held_bytes=1)
    same = replace(first, timeline=replace(first.timeline, cuts=(larger,)))
    begin_study(StudyFolder(tmp_path / "there" / "team"), same, cluster, settings, storage=url).close()


def _renamed(model: ModelSpec) -> Timeline:
    forward = tuple(replace(segment, module=f"other.{segment.module}") for segment in model.timeline.forward)
    return replace(model.timeline, forward=forward)


def test_the_order_of_what_is_allowed_does_not_matter(begin: Begin) -> None:
    begin("here", allow=("stale", "lossy"))
    begin("there", allow=("lossy", "stale"))


def test_a_study_of_before_adopts_what_its_next_tuner_tries(
    begin: Begin, model: ModelSpec, cluster: ClusterSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        # Older versions kept the model and the cluster alone.
        adopts = Study._adopts
        before.setattr(Study, "_adopts", lambda *given: given[1] in ("allow", "target") or adopts(*given))
        old = begin("here", allow=("lossy",))
    old.close()
    resume_study(old.folder, model, cluster).close()
    with pytest.raises(InputError, match="was begun with --allow lossy"):
        begin("there")


@pytest.fixture
def local_time() -> Iterator[Callable[[str], None]]:
    """Sets the time zone of this machine."""
    before = os.environ.get("TZ")

    def put(zone: str | None) -> None:
        if zone is None:
            os.environ.pop("TZ", None)
        else:
            os.environ["TZ"] = zone
        time.tzset()

    yield put
    put(before)


def test_tuners_may_live_in_different_time_zones(
    begin: Begin, ours: list[Candidate], local_time: Callable[[str], None]
) -> None:
    here, there = begin("here"), begin("there")
    here.enqueue(ours[:2])
    # Five hours behind, then five hours ahead. Such names need no files of zones.
    local_time("THERE+5")
    assert there.ask() is not None
    there.begin_for_proof(ours[2])
    local_time("HERE-5")
    assert here.taken() == {one.strategy_id for one in ours[:3]}
    assert here.num_under_way() == 1


def test_an_hour_that_summer_time_skips_makes_no_trial_older(local_time: Callable[[str], None]) -> None:
    local_time("CET-1CEST,M3.5.0,M10.5.0/3")
    times = [dt.datetime(2026, 3, 29, 1, 55), dt.datetime(2026, 3, 29, 3, 5)]  # noqa: DTZ001 - as Optuna tells them
    trials = [create_trial(state=TrialState.RUNNING) for _ in times]
    for trial, when in zip(trials, times, strict=True):
        trial.datetime_start = when
    first, second = map(started, trials)
    assert first is not None
    assert second is not None
    assert second - first == dt.timedelta(minutes=10)


def test_a_damaged_start_is_none() -> None:
    trial = create_trial(state=TrialState.RUNNING)
    for when in (None, dt.datetime(1, 1, 1)):  # noqa: DTZ001 - as Optuna tells it
        trial.datetime_start = when
        assert started(trial) is None


def test_failures_of_the_machines_alone_use_up_no_excuse(
    begin: Begin, ours: list[Candidate], make_record: MakeRecord
) -> None:
    study = begin("here")

    def fail(blame: Any) -> None:
        study.enqueue(ours[:1])
        asked = study.ask()
        assert asked is not None
        failure = Failure(kind="infrastructure", message="no luck")
        study.tell(replace(make_record(asked.number, asked.candidate, None), failure=failure), blame=blame)

    fail("machines")
    assert not study.is_repeated(ours[0])
    fail("either")
    assert study.is_repeated(ours[0])


def test_failures_of_older_studies_count_as_before(
    begin: Begin, ours: list[Candidate], make_record: MakeRecord
) -> None:
    study = begin("here")
    study.enqueue(ours[:1])
    asked = study.ask()
    assert asked is not None
    failure = Failure(kind="infrastructure", message="no luck")
    study.tell(replace(make_record(asked.number, asked.candidate, None), failure=failure))
    assert study.is_repeated(ours[0])
