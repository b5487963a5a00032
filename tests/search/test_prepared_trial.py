"""A study lowers each strategy that it tries once."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autosync.datasets.facts import plan_facts
from autosync.plan import lowering
from autosync.plan.bundling import bundled
from autosync.search.candidates import STOCK_DDP, candidate
from autosync.search.prepared_trial import PreparedTrial, TrialPreparer
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.canonical import strategy_id
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Strategy

if TYPE_CHECKING:
    from conftest import TuneFake


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each strategy is lowered, by its id, from whatever module."""
    counts: Counter[str] = Counter()
    original = lowering.lower

    def lower(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Any:
        counts[strategy_id(strategy, model, cluster)] += 1
        return original(strategy, model, cluster)

    for module in list(sys.modules.values()):
        if getattr(module, "lower", None) is original:
            monkeypatch.setattr(module, "lower", lower)
    return counts


def test_a_prepared_trial_holds_bundle_plan_and_facts(
    model: ModelSpec, cluster: ClusterSpec, lowered: Counter[str]
) -> None:
    preparer = TrialPreparer(model, cluster)
    strategy = build_preset("ps", model, cluster)
    sharded = candidate("preset:ps", strategy, model, cluster)
    trial = preparer.prepare(sharded)
    assert trial is preparer.prepare(sharded)
    assert lowered == {sharded.strategy_id: 1}
    assert trial.bundle == bundled(strategy, model, cluster)
    assert trial.plan is preparer.plan(strategy)
    assert trial.plan is not None
    assert trial.facts == plan_facts(trial.plan, cluster)
    assert preparer.prepare(STOCK_DDP) == PreparedTrial(candidate=STOCK_DDP)


def test_the_tuner_lowers_each_strategy_once(tune_fake: TuneFake, lowered: Counter[str]) -> None:
    """Proposed, tried, recorded, proved and written as the best: one lowering."""
    tuned, _ = tune_fake({}, num_trials=6, patience=0, simulator="analytical", proposer="random")
    tried = {record.strategy_id for record in tuned.records if record.strategy is not None}
    assert len(tried) == 5
    assert all(record.plan is not None for record in tuned.records if record.strategy is not None)
    assert {key: lowered[key] for key in tried} == dict.fromkeys(tried, 1)
