"""The result of tuning as tables, and objects in place of names."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autosync.datasets.schema import Record
from autosync.search.candidates import Candidate, candidate
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.presets import build_preset
from autosync.testing.trials import FakeSteps

if TYPE_CHECKING:
    from conftest import TuneFake


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_tuning_is_a_table_of_its_trials(tune_fake: TuneFake) -> None:
    tuned, _ = tune_fake({"stock DDP": FakeSteps(seconds=0.2, noise=0.005)}, num_trials=4, patience=0)
    frame = tuned.to_frame()
    assert list(frame["trial"]) == [0, 1, 2, 3]
    assert frame["strategy"][0] == "stock DDP"
    assert 190 < frame["step_ms"][0] < 210
    assert (frame["failure"] == "").all()
    proof = tuned.verdict.to_frame()
    assert list(proof["contestant"]) == [result.name for result in tuned.verdict.results]
    assert proof["speedup"][1:].between(1.9, 2.1).all()
    shown = tuned._repr_html_()
    assert f"{tuned.verdict.winner.ratio}." in shown
    assert "autosync-studies/s/best.yaml" in shown
    assert shown.count("<tr") == 1 + len(proof)


def test_where_stock_ddp_stays_it_is_said(tune_fake: TuneFake) -> None:
    tuned, _ = tune_fake({"stock DDP": FakeSteps(seconds=0.05, noise=0.005)}, num_trials=2)
    assert "keep it" in tuned._repr_html_()


class Listed:
    """A proposer that has its strategies already: those of some presets."""

    name = "listed"
    round_size = 1

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._candidates = candidates

    def propose(
        self, history: Sequence[Record], count: int, rng: random.Random, *, taken: Collection[str] = ()
    ) -> list[Candidate]:
        tried = {record.strategy_id for record in history} | set(taken)
        return [one for one in self._candidates if one.strategy_id not in tried][:count]


def test_a_proposer_and_a_simulator_may_be_objects(tune_fake: TuneFake, model: ModelSpec, cluster: ClusterSpec) -> None:
    presets = ("sharded", "all_reduce_per_variable")
    listed = [candidate(f"preset:{name}", build_preset(name, model, cluster), model, cluster) for name in presets]
    simulator = TimelineSimulator(model, cluster)
    tuned, _ = tune_fake({}, num_trials=9, proposer=Listed(listed), simulator=simulator)
    assert {record.origin for record in tuned.records} == {
        "baseline:torch_ddp",
        *(f"preset:{name}" for name in presets),
    }
    assert tuned.summary["ended"] is not None
    built, _ = tune_fake({}, study="built", num_trials=9, proposer=lambda _: Listed(listed), simulator=simulator)
    assert len(built.records) == len(tuned.records)


def test_the_script_of_an_earlier_winner_does_not_stay(tune_fake: TuneFake) -> None:
    tuned, _ = tune_fake({}, num_trials=2)
    script = tuned.folder / "tuned_ddp.py"
    script.write_text("# of a proof whose winner no longer wins\n")
    tune_fake({}, resume="s", num_trials=2)
    assert not script.exists()
