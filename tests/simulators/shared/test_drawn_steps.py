"""Steps that use different variables are played as the strategy without what stays, and nothing else changes."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.plan.compiled.lowering import Lowering
from autosync.plan.compiled.tables import tables_at
from autosync.plan.lowering import lower
from autosync.plan.tables import tables_of
from autosync.simulators.analytical.simulator import AnalyticalSimulator
from autosync.simulators.shared.drawn_steps import DrawnSteps
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.specs.model import ModelSpec
from autosync.specs.use_sample import UseSample
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import without
from autosync.strategy.space import Limits, Space
from tests.helpers.example_plans import cluster_of, model_of
from tests.helpers.random_specs import random_cluster, random_model
from tests.helpers.use_samples import with_uses

SIMULATORS: dict[str, Any] = {"analytical": AnalyticalSimulator, "timeline": TimelineSimulator}
SEEDS = st.integers(0, 2**32 - 1)


@pytest.fixture(params=list(SIMULATORS))
def simulator(request: pytest.FixtureRequest) -> Any:
    return SIMULATORS[request.param]


@settings(max_examples=60)
@given(SEEDS)
def test_what_travels_is_lowered_alike_by_both_lowerings(seed: int) -> None:
    rng = random.Random(seed)
    cluster = random_cluster(rng, backends=["gloo"])
    model = with_uses(random_model(rng), rng)
    strategy = Space(model=model, cluster=cluster, limits=Limits(allow=("lossy", "stale"))).sample(rng)
    steps = DrawnSteps(model, cluster).of(strategy)
    assert sum(step.share for step in steps) == pytest.approx(1)
    lowering = Lowering(model, cluster)
    plans = lowering.lower(lowering.encode([step.strategy for step in steps]))
    for number, step in enumerate(steps):
        found = tables_at(plans, number, cluster, shapes=lowering.shapes, costs=lowering.costs)
        expected = tables_of(lower(step.strategy, model, cluster))
        assert found.shapes == expected.shapes
        for name in found.operations._fields[:-1]:
            assert getattr(found.operations, name).tolist() == getattr(expected.operations, name).tolist()
        assert found.gates.kind.tolist() == expected.gates.kind.tolist()


def test_without_a_sample_steps_are_all_alike() -> None:
    model, cluster = model_of(), cluster_of(1, 1)
    strategy = build_preset("ddp", model, cluster)
    ((found, share),) = DrawnSteps(model, cluster).of(strategy)
    assert (found is strategy, share) == (True, 1)


def _never(model: ModelSpec, *names: str) -> ModelSpec:
    return replace(model, use_sample=UseSample(groups=(names,), steps=(("0", "0"),)))


def test_what_no_step_uses_costs_nothing(simulator: Any) -> None:
    model, cluster = model_of(), cluster_of(1, 1)
    strategy = build_preset("all_reduce_per_variable", model, cluster)
    (found,) = simulator(_never(model, "linear", "bias"), cluster).predict([strategy])
    # A sample in which nothing else stays: torch's reducer runs neither plan.
    (same,) = simulator(_never(model, "bias"), cluster).predict([without(strategy, {"linear", "bias"})])
    assert found == same
    assert found.seconds < simulator(_never(model, "bias"), cluster).predict([strategy])[0].seconds


def test_a_prediction_is_the_mean_over_drawn_steps(simulator: Any) -> None:
    cluster = cluster_of(1, 1)
    sample = UseSample(groups=(("linear",),), steps=(("0", "0"), ("1", "0"), ("1", "1"), ("0", "1")))
    model = replace(model_of(), use_sample=sample)
    strategy = build_preset("all_reduce_per_variable", model, cluster)
    some, every = (
        simulator(replace(model, use_sample=replace(sample, steps=steps)), cluster).predict([strategy])[0].seconds
        for steps in ((("0", "0"),), (("1", "0"),))
    )
    mixed = simulator(model, cluster)
    assert mixed.predict([strategy])[0].seconds == pytest.approx(0.25 * some + 0.75 * every)
    twice = mixed.predict([strategy, build_preset("ddp", model, cluster), strategy])
    assert twice[0] == twice[2] == mixed.predict([strategy])[0]


def test_columns_are_predicted_like_strategies() -> None:
    cluster = cluster_of(1, 1)
    model = replace(model_of(), use_sample=UseSample(groups=(("linear",),), steps=(("0", "0"), ("1", "0"))))
    simulator = AnalyticalSimulator(model, cluster)
    strategies = [build_preset(name, model, cluster) for name in ("ddp", "all_reduce_per_variable")]
    found = simulator.predict_columns(simulator.encode(strategies))
    assert found == pytest.approx(np.array([one.seconds for one in simulator.predict(strategies)]))


def test_a_trace_and_an_explanation_are_those_of_the_most_frequent_step() -> None:
    cluster = cluster_of(1, 1)
    model = _never(model_of(), "linear")
    simulator = TimelineSimulator(model, cluster)
    strategy = build_preset("all_reduce_per_variable", model, cluster)
    assert simulator.explain(strategy).seconds == pytest.approx(simulator.predict([strategy])[0].seconds, rel=1e-6)
    assert simulator.trace(strategy)
