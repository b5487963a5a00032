"""Simulators learn the errors of the others, from trials of the target and of other models and clusters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autosync.datasets.schema import Failure, Record
from autosync.datasets.store import RecordStore
from autosync.documents import without_file
from autosync.errors import InputError
from autosync.simulators.catalogue import open_simulator
from autosync.simulators.evaluation import Accuracy, accuracy_of, measured_of
from autosync.simulators.features.reader import StrategyReader
from autosync.simulators.interface import Simulator
from autosync.simulators.learned.boosted import UNTAUGHT
from autosync.simulators.learned.files import is_saved
from autosync.simulators.learned.priors import lots_of, trained_on
from autosync.simulators.learned.ranker import RankerStudent, load_ranker, save_ranker
from autosync.simulators.learned.simulators import ranker_of, shipped_folder
from autosync.simulators.learned.trials import taken, targets_of, teaching
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.files import parse_strategy
from autosync.strategy.representation import Strategy

MakeTrials = Callable[..., list[Record]]
MakeModel = Callable[[int], ModelSpec]
MakeCluster = Callable[[int], ClusterSpec]


def _accuracy(simulator: Simulator, records: Sequence[Record]) -> Accuracy:
    predicted = np.array([one.seconds for one in simulator.predict(_strategies(records))])
    return accuracy_of(measured_of([one.measurement for one in records if one.measurement]), predicted)


@pytest.mark.slow
def test_trials_of_the_target_teach(make_model: MakeModel, make_cluster: MakeCluster, make_trials: MakeTrials) -> None:
    model, cluster = make_model(0), make_cluster(0)
    trials = make_trials(model, cluster, 110)
    told, others = trials[:50], trials[50:]
    found = {}
    for name in ("timeline", "learned", "linear", "sequence"):
        simulator = open_simulator(name, model, cluster)
        simulator.learn(told)
        found[name] = _accuracy(simulator, others)
    ranking = {name: one.pair_ranking or 0.0 for name, one in found.items()}
    assert ranking["learned"] > ranking["timeline"]
    assert ranking["learned"] > max(ranking["linear"], ranking["sequence"])
    assert (found["learned"].median_error or 1.0) < 0.7 * (found["timeline"].median_error or 0.0)


@pytest.mark.slow
def test_other_models_and_clusters_teach(
    tmp_path: Path,
    make_model: MakeModel,
    make_cluster: MakeCluster,
    make_trials: MakeTrials,
    make_store: Callable[..., Path],
) -> None:
    store = make_store(tmp_path / "store", numbers=range(1, 6), count=40)
    model, cluster = make_model(0), make_cluster(0)
    judged = make_trials(model, cluster, 60)
    timeline = _accuracy(open_simulator("timeline", model, cluster), judged)
    transferred = open_simulator("learned", model, cluster, prior=store)
    found = _accuracy(transferred, judged)
    assert (found.pair_ranking or 0.0) > (timeline.pair_ranking or 0.0)
    assert (found.median_error or 1.0) < (timeline.median_error or 0.0)
    assert all(one.spread > 0 for one in transferred.predict(_strategies(judged[:5])))
    # The same, trained once and opened from where it was saved.
    lots = lots_of(store)
    ranker, lesson = ranker_of(lots)
    save_ranker(tmp_path / "ranker", ranker, trained_on=trained_on(lots), accuracy=lesson.held_out())
    saved = open_simulator("learned", model, cluster, prior=tmp_path / "ranker")
    for one, other in zip(saved.predict(_strategies(judged)), transferred.predict(_strategies(judged)), strict=True):
        assert one.seconds == pytest.approx(other.seconds, rel=1e-5)
    for name in ("linear", "sequence"):
        assert _accuracy(open_simulator(name, model, cluster, prior=store), judged).pair_ranking is not None


def _strategies(records: Sequence[Record]) -> list[Strategy]:
    return [parse_strategy(without_file(dict(one.strategy or {}))) for one in records]


def test_what_trees_leave_of_enough_trials_is_smoothed(
    make_model: MakeModel, make_cluster: MakeCluster, make_trials: MakeTrials
) -> None:
    model, cluster = make_model(0), make_cluster(0)
    trials = make_trials(model, cluster, 40)
    student = RankerStudent(StrategyReader(model, cluster))
    rows = student.read(_strategies(trials))
    targets = targets_of([one.measurement for one in trials if one.measurement], student.complexity(rows))
    few = np.arange(20, dtype=np.intp)
    assert student.taught(taken(rows, few), targets.rows(few)).smoothed is None
    taught = student.taught(rows, targets)
    errors = [
        float(np.abs(one.predict(rows)[0] - targets.log_seconds).mean())
        for one in (taught, replace(taught, smoothed=None))
    ]
    assert errors[0] < 0.5 * errors[1]


def test_it_knows_how_unsure_it_is(make_model: MakeModel, make_cluster: MakeCluster, make_trials: MakeTrials) -> None:
    model, cluster = make_model(0), make_cluster(0)
    trials = make_trials(model, cluster, 60)
    simulator = open_simulator("learned", model, cluster)
    simulator.learn(trials[:30])
    found = simulator.predict(_strategies(trials[30:]))
    errors = [
        math.log(one.seconds / record.measurement.median_seconds) / one.spread
        for one, record in zip(found, trials[30:], strict=True)
        if record.measurement is not None
    ]
    # In standard deviations, if these are what they say: most within two, and not all of them far within one.
    assert np.mean(np.abs(errors) < 2) > 0.6
    assert np.max(np.abs(errors)) > 0.3


def test_disturbed_failed_stock_and_staged_trials_teach_nothing(
    make_model: MakeModel, make_cluster: MakeCluster, make_trials: MakeTrials
) -> None:
    good, *others = make_trials(make_model(0), make_cluster(0), 5)
    assert good.measurement is not None
    failed = replace(others[0], measurement=None, failure=Failure(kind="timeout", message=""))
    stock = replace(others[1], strategy=None, strategy_id=None, plan_id=None)
    disturbed = replace(others[2], measurement=replace(good.measurement, flags=("busy_cpu",)))
    staged = replace(others[3], strategy={**(others[3].strategy or {}), "stages": [{"before": 0, "ranks": [0]}]})
    assert teaching([failed, stock, disturbed, staged, good]) == [good]


def test_flags_of_drift_stay_where_no_reference_shows_it(tmp_path: Path, make_store: Callable[..., Path]) -> None:
    store = RecordStore(make_store(tmp_path / "store", numbers=[0], count=2))
    drifting, steady = store.records()
    assert drifting.measurement is not None
    flagged = replace(drifting, measurement=replace(drifting.measurement, flags=("drifting_machine",)))
    store.records_file.unlink()
    store.extend([flagged, steady])
    assert [lot.records for lot in lots_of(store.path)] == [(steady,)]


def test_a_prior_that_has_grown_is_learned_again(
    tmp_path: Path,
    make_model: MakeModel,
    make_cluster: MakeCluster,
    make_trials: MakeTrials,
    make_store: Callable[..., Path],
) -> None:
    model, cluster = make_model(0), make_cluster(0)
    strategies = _strategies(make_trials(model, cluster, 3))
    store = make_store(tmp_path / "store", numbers=[1], count=8)
    before = open_simulator("linear", model, cluster, prior=store).predict(strategies)
    assert open_simulator("linear", model, cluster, prior=store).predict(strategies) == before
    make_store(store, numbers=[2], count=8)
    assert open_simulator("linear", model, cluster, prior=store).predict(strategies) != before


def test_records_without_specs_are_no_prior(
    tmp_path: Path, make_model: MakeModel, make_cluster: MakeCluster, make_trials: MakeTrials
) -> None:
    store = RecordStore(tmp_path)
    for record in make_trials(make_model(0), make_cluster(0), 3):
        store.append(record)
    with pytest.raises(InputError, match=r"nothing can be learned from its records .*undisturbed\)$"):
        open_simulator("learned", make_model(1), make_cluster(1), prior=tmp_path)
    with pytest.raises(InputError, match=r"undisturbed\); name the study or folder"):
        open_simulator("learned", make_model(1), make_cluster(1), prior=store.records_file)


def test_the_ranker_that_ships_fits_this_version() -> None:
    """Where it does not, tools/train_ranker.py trains it again."""
    if not is_saved(shipped_folder()):
        pytest.skip("no ranker is in this checkout")
    assert load_ranker(shipped_folder()) is not UNTAUGHT
