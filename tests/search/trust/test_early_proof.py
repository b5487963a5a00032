"""Without a number of trials, tuning proves what is predicted to be fastest, and goes on only while it is worth it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autosync.datasets.studies import read_study
from autosync.errors import InputError
from autosync.search.candidates import STOCK_DDP, candidate_of
from autosync.search.measurement_effort import NORMAL_EFFORT
from autosync.search.shown_summary import load_shown
from autosync.search.study_folder import StudyFolder, read_settings
from autosync.search.trust.early_answer import EarlyAnswer
from autosync.search.trust.next_trials import TRAINING_SECONDS
from autosync.search.tuned import Tuned
from autosync.strategy.bundle import load_bundle
from autosync.testing.trials import FakeService, FakeSteps

if TYPE_CHECKING:
    from conftest import Told

    TuneFake = Callable[..., tuple[Tuned, FakeService]]

NUM_PROVED = 1 + NORMAL_EFFORT.num_predicted
FAST = FakeSteps(seconds=0.05, noise=0.005)
FOLDER = StudyFolder(Path("autosync-studies/s"))


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def quickly(tune_fake: TuneFake) -> TuneFake:
    """Tunes with a simulator that does not have to learn after each trial."""

    def run(steps: dict[str, FakeSteps], **settings: Any) -> tuple[Tuned, FakeService]:
        begun = {} if "resume" in settings else {"simulator": "timeline"}
        return tune_fake(steps, **{**begun, **settings})

    return run


def _names(tuned: Tuned) -> list[str]:
    return [candidate_of(record).name for record in tuned.records]


def _interrupt(monkeypatch: pytest.MonkeyPatch, *, at: Callable[[FakeService, str], bool]) -> None:
    """Interrupt the run where it runs a contestant."""
    run = FakeService.run

    def interrupted(self: FakeService, name: str, num_steps: int, **options: Any) -> Any:
        if at(self, name):
            raise KeyboardInterrupt
        return run(self, name, num_steps, **options)

    monkeypatch.setattr(FakeService, "run", interrupted)


def test_in_a_short_training_only_the_predicted_are_proved(quickly: TuneFake, told: Told) -> None:
    tuned, service = quickly({}, training_seconds=1.0, progress=told)
    assert [record.trial for record in tuned.records] == list(range(NUM_PROVED))
    assert candidate_of(tuned.records[0]) == STOCK_DDP
    assert [record.origin.partition(":")[0] for record in tuned.baselines] in ([], ["preset"])
    assert all(record.measurement is not None for record in tuned.records)
    assert list(read_study(tuned.folder)) == [*tuned.records, *tuned.baselines]
    proved = {result.candidate.strategy_id for result in tuned.verdict.results}
    assert {record.strategy_id for record in tuned.records[1:]} <= proved
    # Tried alone, in the one proof, and for its timeline.
    assert sum(what == "prepare" and name == STOCK_DDP.name for what, name, _ in service.calls) == 3

    ended = str(tuned.summary["ended"])
    assert ended.startswith("the next trial is expected to shorten a step by ")
    assert " of a training of 1 s; it takes " in ended
    assert ended.endswith(" with another proof")
    assert ended in told.notes
    assert tuned.summary["proved_at_once"]
    answer: dict[str, Any] = tuned.summary["first_answer"]  # type: ignore[assignment]
    assert answer["strategy_id"] == tuned.verdict.winner.candidate.strategy_id
    assert 0 < answer["wall_seconds"] <= tuned.summary["wall_seconds"]  # type: ignore[operator]
    (forecast,) = tuned.summary["forecasts"]  # type: ignore[misc]
    assert (forecast["in_words"], forecast["after_trials"]) == (ended, NUM_PROVED)
    assert 0 <= forecast["saved_seconds"] < forecast["seconds"]
    assert any(line.startswith("expected without a trial: ") for line in told.notes)
    assert any(line.startswith("proved: ") for line in told.notes)


def test_in_a_long_training_trials_go_on(quickly: TuneFake, told: Told) -> None:
    tuned, _ = quickly({}, training_seconds=1e12, patience=NUM_PROVED + 3, progress=told)
    assert len(tuned.records) > NUM_PROVED
    assert any(line.startswith(f"trial {NUM_PROVED + 1} of at most 50: ") for line in told.notes)
    assert str(tuned.summary["ended"]).startswith("no further gain is likely")


def test_a_later_trial_that_is_faster_is_proved_again(quickly: TuneFake) -> None:
    long: dict[str, Any] = {"training_seconds": 1e12, "patience": NUM_PROVED + 3}
    first, _ = quickly({}, study="first", **long)
    fast = _names(first)[NUM_PROVED]
    tuned, _ = quickly({fast: FAST}, **long)
    assert _names(tuned)[NUM_PROVED] == fast
    assert tuned.verdict.winner.name == fast
    assert not tuned.summary["proved_at_once"]
    answer: dict[str, Any] = tuned.summary["first_answer"]  # type: ignore[assignment]
    assert answer["name"] != fast
    assert answer["wall_seconds"] < tuned.summary["wall_seconds"]  # type: ignore[operator]
    assert load_bundle(FOLDER.best).strategy_id == tuned.verdict.winner.candidate.strategy_id


def test_the_answer_so_far_is_there_while_trials_go_on(quickly: TuneFake, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = quickly({}, study="first", training_seconds=1.0)
    fast = _names(first)[1]
    known = {*_names(first), *(result.name for result in first.verdict.results)}
    _interrupt(monkeypatch, at=lambda _, name: name not in known)
    with pytest.raises(KeyboardInterrupt):
        quickly({fast: FAST}, training_seconds=1e12)
    assert load_shown(FOLDER).winner.name == fast
    assert load_bundle(FOLDER.best).strategy_id == first.records[1].strategy_id


def test_an_early_proof_that_is_interrupted_is_made_again(quickly: TuneFake, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = quickly({}, study="whole", training_seconds=1.0)
    last = _names(whole)[-1]
    with monkeypatch.context() as patched:
        _interrupt(patched, at=lambda _, name: name == last)
        with pytest.raises(KeyboardInterrupt):
            quickly({}, training_seconds=1.0)
    assert list(read_study(FOLDER.path)) == []
    tuned, _ = quickly({}, resume="s")
    assert _names(tuned) == _names(whole)
    assert tuned.summary["proved_at_once"]


def test_a_resumed_study_takes_the_same_course(quickly: TuneFake, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = quickly({}, study="whole", training_seconds=2e4)
    proved = {*_names(whole)[:NUM_PROVED], *(result.name for result in whole.verdict.results)}
    with monkeypatch.context() as patched:
        _interrupt(patched, at=lambda _, name: name not in proved)
        with pytest.raises(KeyboardInterrupt):
            quickly({}, training_seconds=2e4)
    tuned, _ = quickly({}, resume="s")
    assert _names(tuned) == _names(whole)
    assert len(tuned.records) > NUM_PROVED


def test_an_early_answer_is_remembered_as_it_was(quickly: TuneFake) -> None:
    tuned, _ = quickly({}, training_seconds=1.0)
    kept, found = EarlyAnswer.kept(load_shown(FOLDER)), EarlyAnswer.of(tuned.verdict)
    assert kept == found
    assert len(found.strategy_ids) >= NUM_PROVED
    quickly({}, study="t", num_trials=3)
    assert EarlyAnswer.kept(load_shown(StudyFolder(Path("autosync-studies/t")))) == EarlyAnswer()


def test_a_resumed_study_ends_as_it_was_begun_unless_told_otherwise(quickly: TuneFake) -> None:
    quickly({}, training_seconds=1.0)
    assert read_settings(FOLDER).training_seconds == 1.0
    again, _ = quickly({}, resume="s")
    assert len(again.records) == NUM_PROVED
    assert not again.summary["proved_at_once"]
    more, _ = quickly({}, resume="s", num_trials=NUM_PROVED + 2)
    assert len(more.records) == NUM_PROVED + 2
    assert more.summary["forecasts"] == []
    longer, _ = quickly({}, resume="s", training_seconds=1e12, patience=NUM_PROVED + 4)
    assert len(longer.records) > NUM_PROVED + 2


def test_what_cannot_be_proved_is_no_end(quickly: TuneFake, told: Told) -> None:
    first, _ = quickly({}, study="first", training_seconds=1.0)
    contestants = {result.name for result in first.verdict.results} - {STOCK_DDP.name}
    fails = {name: FakeSteps(seconds=0.1, fails_at=0) for name in contestants}
    tuned, _ = quickly(fails, training_seconds=1e12, patience=12, progress=told)
    assert any(line.startswith("nothing is proved yet: ") for line in told.notes)
    assert len(tuned.records) > 1
    assert not tuned.summary["proved_at_once"]


def test_a_contestant_that_fails_is_forgotten_by_the_early_proof(quickly: TuneFake) -> None:
    first, _ = quickly({}, study="first", training_seconds=1.0)
    fails = {_names(first)[1]: FakeSteps(seconds=0.1, fails_at=0)}
    tuned, _ = quickly(fails, training_seconds=1.0)
    assert _names(tuned) == [name for name in _names(first) if name not in fails]
    assert fails.keys() <= tuned.verdict.left_out.keys()


def test_the_end_of_a_search_is_either_a_number_or_a_worth(quickly: TuneFake) -> None:
    with pytest.raises(InputError, match="--trials and --training are both given"):
        quickly({}, num_trials=3, training_seconds=60.0)
    with pytest.raises(InputError, match="a training of 0 s"):
        quickly({}, training_seconds=0.0)
    quickly({}, num_trials=1)
    assert read_settings(FOLDER).training_seconds is None
    quickly({}, study="t", budget_seconds=0.0)
    settings = read_settings(StudyFolder(Path("autosync-studies/t")))
    assert (settings.num_trials, settings.training_seconds) == (50, TRAINING_SECONDS)


def test_the_same_study_takes_the_same_course(quickly: TuneFake) -> None:
    courses = [quickly({}, study=name, training_seconds=2e4)[0] for name in ("a", "b")]
    assert _names(courses[0]) == _names(courses[1])
    assert courses[0].summary["ended"] == courses[1].summary["ended"]


def test_a_replay_ends_when_further_trials_are_not_worth_it(quickly: TuneFake) -> None:
    recorded, _ = quickly({}, study="recorded", num_trials=20, patience=0)
    tuned, _ = quickly({}, study="s", replay="recorded", training_seconds=1.0)
    assert len(tuned.records) == NUM_PROVED
    assert {record.strategy_id for record in tuned.records} <= {record.strategy_id for record in recorded.records} | {
        record.strategy_id for record in recorded.baselines
    }
