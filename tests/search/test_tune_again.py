"""Studies continue: after an interruption, with other settings, without another trial, and as a replay."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autosync.datasets.schema import Record
from autosync.datasets.studies import read_study
from autosync.errors import InputError
from autosync.search.candidates import STOCK_DDP
from autosync.search.measurement_effort import Effort
from autosync.search.tune import tune
from autosync.search.tuned import Tuned
from autosync.testing.trials import FakeService, FakeSteps
from autosync.trials.compare import Design
from autosync.trials.contestant import Contestant
from autosync.trials.policy import Policy

if TYPE_CHECKING:
    from conftest import Told

    TuneFake = Callable[..., tuple[Tuned, FakeService]]


CHEAP = Effort(
    trial=Policy(max_warmup_steps=4, min_steps=4, max_steps=8, budget_seconds=2.0),
    proof=Design(num_steps=12, budget_seconds=5.0),
)


STOCK = STOCK_DDP.name


def _measured(tuned: Tuned) -> list[Record]:
    """All that was measured, in the order of the trials."""
    return sorted([*tuned.records, *tuned.baselines], key=lambda record: record.trial)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Interrupts the run where it prepares a contestant."""

    def at(name: str) -> None:
        prepare = FakeService.prepare

        def interrupted(self: FakeService, contestant: Contestant) -> None:
            if contestant.name == name:
                raise KeyboardInterrupt
            prepare(self, contestant)

        monkeypatch.setattr(FakeService, "prepare", interrupted)

    return at


@pytest.mark.parametrize("finished", [0, 1, 3])
def test_an_interruption_keeps_what_has_ended_and_says_where(
    finished: int, tune_fake: TuneFake, names: list[str], told: Told, interrupt: Callable[[str], None]
) -> None:
    words = {0: "no trials are kept", 1: "1 trial is kept", 3: "3 trials are kept"}
    interrupt(names[finished])
    with pytest.raises(KeyboardInterrupt):
        tune_fake({}, num_trials=6, progress=told)
    assert told.notes[-2:] == [f"{words[finished]} in autosync-studies/s", "to go on: autosync tune --resume s"]
    assert [record.trial for record in read_study("autosync-studies/s")] == list(range(finished))


def test_the_settings_are_kept(tune_fake: TuneFake) -> None:
    tuned, _ = tune_fake({}, num_trials=1, effort=CHEAP, seed=3, budget_seconds=100.0)
    settings = json.loads((tuned.folder / "study.json").read_text())
    assert (settings["task"], settings["num_trials"], settings["seed"]) == ("model.yaml", 1, 3)
    assert settings["effort"]["trial"]["max_steps"] == CHEAP.trial.max_steps
    assert settings["effort"]["proof"]["num_steps"] == CHEAP.proof.num_steps


def test_a_study_goes_on_as_it_was_begun(tune_fake: TuneFake, told: Told) -> None:
    whole, _ = tune_fake({}, study="whole", num_trials=8, patience=0, effort=CHEAP)
    begun, _ = tune_fake({}, num_trials=5, patience=0, effort=CHEAP)
    gone_on, _ = tune_fake({}, resume="s", num_trials=8, patience=0, progress=told)
    assert gone_on.records[:5] == begun.records
    assert [record.strategy_id for record in gone_on.records] == [record.strategy_id for record in whole.records]
    assert list(read_study(gone_on.folder)) == _measured(gone_on)
    assert [line.partition(":")[0] for line in told.notes if line.startswith("trial")] == [
        f"trial {number} of 8" for number in (6, 7, 8)
    ]
    # There is nothing left to do but to prove it again.
    again, _ = tune_fake({}, resume="s", num_trials=8)
    assert (again.records, again.baselines) == (gone_on.records, gone_on.baselines)


def test_what_was_measured_for_a_proof_is_not_measured_again(
    tune_fake: TuneFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_off(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("autosync.search.tune.prove", broken_off)
        with pytest.raises(KeyboardInterrupt):
            tune_fake({}, num_trials=4)
    kept = list(read_study("autosync-studies/s"))
    assert len(kept) > 4
    tuned, service = tune_fake({}, resume="s")
    assert (list(tuned.records), list(tuned.baselines)) == (kept[:4], kept[4:])
    assert list(read_study(tuned.folder)) == kept
    # The proof itself begins anew: nobody but those that take part is asked of the ranks.
    prepared = {name for what, name, _ in service.calls if what == "prepare"}
    assert prepared == {result.name for result in tuned.verdict.results}
    assert (tuned.summary["num_trials"], tuned.summary["num_baseline_trials"]) == (4, len(kept) - 4)


def test_a_budget_and_patience_are_kept_unless_given_anew(tune_fake: TuneFake) -> None:
    begun, _ = tune_fake({}, num_trials=8, budget_seconds=0.0, patience=0)
    assert begun.records == ()
    still, _ = tune_fake({}, resume="s")
    assert still.records == ()
    now, _ = tune_fake({STOCK: FakeSteps(seconds=0.05)}, resume="s", budget_seconds=100.0)
    assert len(now.records) == 8
    hasty, _ = tune_fake({}, resume="s", budget_seconds=100.0, num_trials=30, patience=2)
    assert len(hasty.records) == 8, "there was patience for these, and there is for no more"
    assert "7 trials have brought none since the last that did" in str(hasty.summary["ended"])


def test_a_study_that_was_tried_can_be_proved_without_another_trial(tune_fake: TuneFake) -> None:
    begun, _ = tune_fake({}, num_trials=5, patience=0)
    fastest = min(begun.records[1:], key=lambda record: record.measurement.median_seconds)  # type: ignore[union-attr]
    proved, _ = tune_fake({}, resume="s", num_trials=0)
    assert proved.records == begun.records
    finalists = [one.candidate.strategy_id for one in proved.verdict.results if one.contestant.role == "finalist"]
    assert fastest.strategy_id in finalists


@pytest.mark.parametrize("proposer", ["learned", "evolution", "tpe"])
def test_a_replay_is_the_same_each_time_and_needs_no_cluster(
    proposer: str, tune_fake: TuneFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = {}
    pool, _ = tune_fake(steps, study="pool", num_trials=14, patience=0, effort=CHEAP)
    monkeypatch.setattr(FakeService, "prepare", None)
    tuned = [
        tune(replay="autosync-studies/pool", study=name, proposer=proposer, seed=3, num_trials=7, patience=0)
        for name in ("one", "two")
    ]
    assert [r.strategy_id for r in tuned[0].records] == [r.strategy_id for r in tuned[1].records]
    assert tuned[0].verdict.winner.candidate == tuned[1].verdict.winner.candidate
    known = {record.strategy_id: record for record in _measured(pool)}
    assert len(tuned[0].records) == 7
    for record in tuned[0].records:
        recorded = known[record.strategy_id].measurement
        assert record.measurement is not None
        assert recorded is not None
        assert record.measurement.median_seconds == pytest.approx(recorded.median_seconds, rel=0.05)
    whole = tune(replay="pool", study="whole", proposer=proposer, num_trials=40, patience=0)
    assert {record.strategy_id for record in whole.records} == set(known)
    assert whole.summary["ended"] == "nothing new is left to try"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"replay": "nowhere"}, "unknown study 'nowhere'"),
        ({"resume": "nowhere"}, "unknown study 'nowhere'"),
        ({"replay": "autosync-studies/pool", "model": "other"}, "records of 0 such models on clusters"),
    ],
)
def test_what_can_neither_be_resumed_nor_replayed(changes: dict[str, str], words: str, tune_fake: TuneFake) -> None:
    tune_fake({}, study="pool", num_trials=2)
    with pytest.raises(InputError, match=words):
        tune(**changes)  # type: ignore[arg-type]
