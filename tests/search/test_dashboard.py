"""What tools of Optuna show of a study, with the real optuna-dashboard among them."""

from __future__ import annotations

import json
import threading
import urllib.request
import wsgiref.simple_server
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import pytest

from autosync.datasets.schema import Record
from autosync.datasets.storage import close_storage, open_journal
from autosync.search.candidates import STOCK_DDP, Candidate, known_candidates
from autosync.search.dashboard import TRAITS, traits_of
from autosync.search.study import Study, begin_study, resume_study
from autosync.search.study_folder import StudyFolder, StudySettings, new_study_folder
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec

MakeRecord = Callable[[int, object, float | None], Record]


@pytest.fixture
def folder(model: ModelSpec, cluster: ClusterSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyFolder:
    monkeypatch.chdir(tmp_path)
    return new_study_folder("s", model, cluster)


@pytest.fixture
def known(model: ModelSpec, cluster: ClusterSpec) -> list[Candidate]:
    return list(known_candidates(model, cluster, lambda _: True))


def _try(study: Study, candidates: list[Candidate], make_record: MakeRecord) -> None:
    study.enqueue(candidates)
    for number in range(len(candidates)):
        asked = study.ask()
        assert asked is not None
        study.tell(make_record(asked.number, asked.candidate, 0.5 - 0.01 * number))


def test_every_known_strategy_has_its_traits(known: list[Candidate]) -> None:
    for one in (STOCK_DDP, *known):
        for name, value in traits_of(one.strategy).items():
            distribution = TRAITS[name]
            assert distribution.to_external_repr(distribution.to_internal_repr(value)) == value
    assert len({json.dumps(traits_of(one.strategy)) for one in known}) > 3


def test_a_study_names_its_metric_and_notes_its_winner(
    folder: StudyFolder, model: ModelSpec, cluster: ClusterSpec, known: list[Candidate], make_record: MakeRecord
) -> None:
    settings = StudySettings(name="s", task="model.yaml", cluster="pair.yaml", seed=3)
    with begin_study(folder, model, cluster, settings) as study:
        _try(study, [STOCK_DDP, *known[:2]], make_record)
        study.mark_winner(known[0], "twice as fast")
    # Another proof of the same study has another winner.
    with resume_study(folder, model, cluster) as study:
        study.mark_winner(known[1], "three times as fast")
    with _opened(folder) as storage:
        found = optuna.load_study(study_name="s", storage=storage)
        assert found.metric_names == ["seconds of a step"]
        assert [trial.params for trial in found.trials] == [traits_of(one.strategy) for one in (STOCK_DDP, *known[:2])]
        notes = _notes(storage)
    assert sorted(notes) == [
        "**Proven winner:** three times as fast",
        "**Proven winner:** trial 2, three times as fast",
        "Winner of an earlier proof: twice as fast",
    ]


def test_a_strategy_that_was_never_measured_has_no_note(
    folder: StudyFolder, model: ModelSpec, cluster: ClusterSpec, known: list[Candidate]
) -> None:
    settings = StudySettings(name="s", task="model.yaml", cluster="pair.yaml", seed=3)
    with begin_study(folder, model, cluster, settings) as study:
        study.mark_winner(known[0], "never seen")
    with _opened(folder) as storage:
        assert _notes(storage) == []


@pytest.mark.slow
def test_the_real_dashboard_shows_them(
    folder: StudyFolder, model: ModelSpec, cluster: ClusterSpec, known: list[Candidate], make_record: MakeRecord
) -> None:
    dashboard = pytest.importorskip("optuna_dashboard", reason="optuna-dashboard is not installed")
    settings = StudySettings(name="s", task="model.yaml", cluster="pair.yaml", seed=3)
    with begin_study(folder, model, cluster, settings) as study:
        _try(study, [STOCK_DDP, *known[:2]], make_record)
        study.mark_winner(known[0], "twice as fast")
    with _opened(folder) as storage, _served(dashboard.wsgi(storage)) as address:
        (listed,) = _got(f"{address}/api/studies")["study_summaries"]
        shown = _got(f"{address}/api/studies/{listed['study_id']}?after=0")
    assert shown["objective_names"] == ["seconds of a step"]
    assert {one["name"] for one in shown["union_search_space"]} == set(TRAITS)
    assert shown["note"]["body"] == "**Proven winner:** trial 1, twice as fast"
    notes = {trial["number"]: trial["note"]["body"] for trial in shown["trials"]}
    assert notes == {0: "", 1: "**Proven winner:** twice as fast", 2: ""}
    families = {
        trial["number"]: param["param_external_value"]
        for trial in shown["trials"]
        for param in trial["params"]
        if param["name"] == "family"
    }
    assert families == {number: traits_of(one.strategy)["family"] for number, one in enumerate([STOCK_DDP, *known[:2]])}


def _notes(storage: Any) -> list[str]:
    attributes = storage.get_study_system_attrs(storage.get_study_id_from_name("s"))
    return [text for key, text in attributes.items() if "note_str" in key]


@contextmanager
def _opened(folder: StudyFolder) -> Iterator[Any]:
    storage = open_journal(folder.journal)
    try:
        yield storage
    finally:
        close_storage(storage)


@contextmanager
def _served(app: Any) -> Iterator[str]:
    class Silent(wsgiref.simple_server.WSGIRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with wsgiref.simple_server.make_server("127.0.0.1", 0, app, handler_class=Silent) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join(10)


def _got(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)
