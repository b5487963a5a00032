"""The baselines are found by prediction and confirmed by measurement, and nothing is measured twice."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from autosync.datasets.schema import Record
from autosync.search.baselines import NUM_CONFIRMED, BaselineFamilies, baseline_families
from autosync.search.candidates import Candidate
from autosync.simulators.interface import Prediction
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.canonical import strategy_id
from autosync.strategy.presets import build_preset
from autosync.strategy.presets.buckets import MIB
from autosync.strategy.representation import Strategy

MakeRecord = Callable[[int, Candidate, float | None], Record]


class ByMessages:
    """Predicts that a message takes a second."""

    name = "by messages"

    def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
        return [Prediction(seconds=float(len(strategy.messages))) for strategy in strategies]

    def learn(self, records: Sequence[Record]) -> None:
        pass


@pytest.fixture
def large(model: ModelSpec) -> ModelSpec:
    """Four MiB a variable: single buckets differ."""
    variables = tuple(replace(variable, shape=(MIB,)) for variable in model.variables)
    return replace(model, variables=variables)


@pytest.fixture
def baselines(large: ModelSpec, cluster: ClusterSpec) -> BaselineFamilies:
    return baseline_families(large, cluster, lambda strategy: strategy.is_exact)


def test_every_single_bucket_that_differs_and_every_other_exact_preset(
    baselines: BaselineFamilies, large: ModelSpec, cluster: ClusterSpec
) -> None:
    default = strategy_id(build_preset("ddp", large, cluster), large, cluster)
    assert default not in {*baselines.buckets, *baselines.presets}
    assert not baselines.buckets.keys() & baselines.presets.keys()
    counts = [len(one.strategy.messages) for one in baselines.buckets.values() if one.strategy]
    assert counts == [3, 2, 1]
    assert next(one.origin for one in baselines.buckets.values()) == "preset:ddp_cap(0.25 MiB)"
    assert all(one.strategy is not None and one.strategy.is_exact for one in baselines.presets.values())


def test_what_may_not_be_tried_is_no_baseline(large: ModelSpec, cluster: ClusterSpec) -> None:
    none = baseline_families(large, cluster, lambda _: False)
    assert none == BaselineFamilies({}, {})
    assert none.best("bucket", [], ByMessages(), measure=lambda _: 1.0) is None


def test_buckets_of_stock_ddp_are_no_baselines_of_a_task_that_weighs_its_batches(
    baselines: BaselineFamilies, large: ModelSpec, cluster: ClusterSpec
) -> None:
    found = baseline_families(replace(large, weighs=True), cluster, lambda strategy: strategy.is_exact)
    assert found.buckets == {}
    assert found.presets.keys() >= baselines.presets.keys()


def test_the_most_promising_are_measured_and_the_fastest_is_best(baselines: BaselineFamilies) -> None:
    asked: list[Candidate] = []

    def measure(one: Candidate) -> float:
        asked.append(one)
        return 1.0 / len(asked)

    ranked = sorted(baselines.buckets.values(), key=lambda one: len(one.strategy.messages))  # type: ignore[union-attr]
    best = baselines.best("bucket", [], ByMessages(), measure=measure)
    assert asked == ranked[:NUM_CONFIRMED]
    assert best == asked[-1]


def test_what_fails_makes_room_for_the_next(baselines: BaselineFamilies) -> None:
    ranked = sorted(baselines.buckets.values(), key=lambda one: len(one.strategy.messages))  # type: ignore[union-attr]
    seconds = {one.strategy_id: found for one, found in zip(ranked, (None, 0.2, 0.1), strict=True)}
    assert baselines.best("bucket", [], ByMessages(), measure=lambda one: seconds[one.strategy_id]) == ranked[2]


def test_what_was_tried_counts_and_is_not_measured_again(baselines: BaselineFamilies, make_record: MakeRecord) -> None:
    slow, middle, fast = sorted(baselines.buckets.values(), key=lambda one: -len(one.strategy.messages))  # type: ignore[union-attr]
    records = [make_record(0, slow, 0.01), make_record(1, fast, None)]
    asked: list[Candidate] = []

    def measure(one: Candidate) -> float:
        asked.append(one)
        return 0.5

    # The slowest by prediction was the fastest of all; what failed makes room for the next.
    assert baselines.best("bucket", records, ByMessages(), measure=measure) == slow
    assert asked == [middle]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_failure_hides_no_measurement_of_the_same_strategy(
    baselines: BaselineFamilies, make_record: MakeRecord, order: tuple[int, int]
) -> None:
    ranked = sorted(baselines.buckets.values(), key=lambda one: len(one.strategy.messages))  # type: ignore[union-attr]
    records = [make_record(0, ranked[0], 0.01), make_record(1, ranked[0], None)]
    tried = [records[number] for number in order]
    assert baselines.best("bucket", tried, ByMessages(), measure=None) == ranked[0]


def test_what_fails_is_none(baselines: BaselineFamilies) -> None:
    assert baselines.best("bucket", [], ByMessages(), measure=lambda _: None) is None


def test_without_measuring_the_prediction_decides(baselines: BaselineFamilies, make_record: MakeRecord) -> None:
    ranked = sorted(baselines.buckets.values(), key=lambda one: len(one.strategy.messages))  # type: ignore[union-attr]
    assert baselines.best("bucket", [], ByMessages(), measure=None) == ranked[0]
    failed = [make_record(0, ranked[0], None)]
    assert baselines.best("bucket", failed, ByMessages(), measure=None) == ranked[1]
