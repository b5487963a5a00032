"""Calibration finds costs that were hidden from it, keeps to the probe where trials say nothing, and never loses."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from autosync.datasets.schema import Measurement
from autosync.simulators.analytical.simulator import AnalyticalSimulator
from autosync.simulators.calibration import MIN_TRIALS, Parameter, Trial, calibrate, scale, trials_of
from autosync.simulators.shared.arrays import Floats
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.specs.costs import Costs
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.stages import ModelStage, PipelineSchedule
from autosync.testing.simulators import record_of, small_case
from tests.helpers.example_costs import GLOO
from tests.helpers.example_plans import WEIGHT, model_with
from tests.helpers.staged_models import chain, nodes

STRATEGIES = tuple(
    Strategy(messages=tuple(Message(parts=(f"v{index}",)) for index in range(count))) for count in range(1, 25)
)
PRIOR = dataclasses.replace(GLOO, transfer_seconds=1e-3, round_seconds=1e-3)
KNOBS = (Parameter("transfer_seconds", 0.5), Parameter("round_seconds", 0.5))


def predict(costs: Costs, strategies: Sequence[Strategy]) -> Floats:
    """A step takes a hundredth of a second, and what each message takes; nothing has rounds."""
    return np.array([0.01 + costs.transfer_seconds * len(one.messages) for one in strategies])


def trials(truth: Costs, *, noise: float = 0.0, seed: int = 0) -> list[Trial]:
    rng = np.random.default_rng(seed)
    seconds = predict(truth, STRATEGIES) * np.exp(noise * rng.standard_normal(len(STRATEGIES)))
    return [
        Trial(strategy=one, strategy_id=str(number), seconds=float(took), spread=0.01)
        for number, (one, took) in enumerate(zip(STRATEGIES, seconds, strict=True))
    ]


def test_hidden_costs_are_found() -> None:
    found = calibrate(predict, PRIOR, trials(dataclasses.replace(GLOO, transfer_seconds=1.6e-3)), parameters=KNOBS)
    assert found.num_trials == len(STRATEGIES)
    assert found.costs.transfer_seconds == pytest.approx(1.6e-3, rel=0.1)
    assert found.costs.round_seconds == pytest.approx(PRIOR.round_seconds), "of rounds the trials say nothing"
    assert found.spread < 0.05


def test_one_wild_trial_pulls_nothing_along() -> None:
    wild = trials(dataclasses.replace(GLOO, transfer_seconds=1.6e-3), noise=0.01)
    wild[3] = dataclasses.replace(wild[3], seconds=10 * wild[3].seconds)
    found = calibrate(predict, PRIOR, wild, parameters=KNOBS)
    assert found.costs.transfer_seconds == pytest.approx(1.6e-3, rel=0.15)


def test_costs_that_are_right_stay_as_they_are() -> None:
    """Noise is no reason to move: what fits it does not fit what was held out."""
    for seed in range(8):
        found = calibrate(predict, PRIOR, trials(PRIOR, noise=0.02, seed=seed), parameters=KNOBS)
        assert found.costs.transfer_seconds == pytest.approx(PRIOR.transfer_seconds, rel=0.05)


def test_what_it_cannot_explain_leaves_the_probe_s_costs() -> None:
    rng = np.random.default_rng(0)
    random = [dataclasses.replace(one, seconds=float(rng.uniform(0.01, 0.05))) for one in trials(PRIOR)]
    assert calibrate(predict, PRIOR, random, parameters=KNOBS).costs == PRIOR


def test_other_trials_of_a_strategy_are_not_unseen() -> None:
    """Of one strategy, however often it was measured, nothing can be held out."""
    costs = dataclasses.replace(PRIOR, transfer_seconds=4 * PRIOR.transfer_seconds)
    same = [trials(costs)[0]] * 20
    assert calibrate(predict, PRIOR, same, parameters=KNOBS).costs == PRIOR
    predicted = predict(PRIOR, [one.strategy for one in same])
    slow = [dataclasses.replace(one, seconds=2 * float(predicted[0])) for one in same]
    assert scale(predicted, slow).factor == 1.0


def test_a_few_trials_change_nothing() -> None:
    few = trials(dataclasses.replace(GLOO, transfer_seconds=2e-3))[: MIN_TRIALS - 1]
    assert calibrate(predict, PRIOR, few, parameters=KNOBS).costs == PRIOR


def test_payload_gets_no_more_than_the_link() -> None:
    fast = [dataclasses.replace(one, seconds=one.seconds / 5) for one in trials(PRIOR)]

    def by_share(costs: Costs, strategies: Sequence[Strategy]) -> Floats:
        return predict(PRIOR, strategies) / costs.link_share

    found = calibrate(by_share, GLOO, fast, parameters=(Parameter("link_share", 1.0),))
    assert found.costs.link_share <= 1.0


def test_only_trials_that_tell_something_are_learned_from() -> None:
    case = small_case()
    found = trials_of(case.records, case.model, case.cluster)
    assert len(found) == len(case.strategies), "neither the failure nor stock DDP"
    first = case.records[0]
    assert first.measurement is not None
    drifting = dataclasses.replace(first.measurement, flags=("drifting_machine",))
    doubtful = dataclasses.replace(first, measurement=drifting)
    assert not trials_of([doubtful], case.model, case.cluster)
    assert not trials_of(case.records, model_with(WEIGHT), case.cluster), "of another model"


def test_a_simulator_learns_the_costs_of_a_cluster_from_its_trials() -> None:
    """Trials made up by a simulator with other costs: what was not seen is predicted better than before."""
    case = small_case(1, num_strategies=48)
    truth = AnalyticalSimulator(
        case.model, case.cluster, costs=dataclasses.replace(GLOO, native_round_seconds=9e-4, round_seconds=4e-4)
    )
    seconds = [one.seconds for one in truth.predict(case.strategies)]
    records = [
        dataclasses.replace(record, measurement=_steady(took, case.cluster.num_workers))
        for record, took in zip(case.records, seconds, strict=False)
    ]
    simulator = AnalyticalSimulator(case.model, case.cluster, costs=GLOO)

    def error() -> float:
        found = simulator.predict(case.strategies[24:])
        return float(np.mean([abs(np.log(one.seconds / took)) for one, took in zip(found, seconds[24:], strict=True)]))

    before = error()
    simulator.learn(records[:24])
    assert error() < 0.5 * before
    assert simulator.predict(case.strategies)[0].spread > 0


@pytest.mark.slow
def test_the_timeline_learns_by_how_much_steps_are_longer() -> None:
    case = small_case()
    timeline = TimelineSimulator(case.model, case.cluster, costs=GLOO)
    before = [one.seconds for one in timeline.predict(case.strategies)]
    records = [
        dataclasses.replace(record, measurement=_steady(1.1 * took, case.cluster.num_workers))
        for record, took in zip(case.records, before, strict=False)
    ]
    timeline.learn(records)
    after = [one.seconds for one in timeline.predict(case.strategies)]
    assert after == pytest.approx([1.1 * took for took in before], rel=0.01)


def test_a_factor_is_found_and_wild_trials_do_not_move_it() -> None:
    measured = trials(PRIOR, noise=0.01)
    predicted = np.array([0.9 * one.seconds for one in measured])
    predicted[5] /= 3
    found = scale(predicted, measured)
    assert found.factor == pytest.approx(1 / 0.9, rel=0.01)
    assert found.num_trials == len(measured)
    assert found.spread < 0.03


def test_without_a_common_factor_there_is_none() -> None:
    measured = trials(PRIOR, noise=0.05)
    predicted = predict(PRIOR, STRATEGIES)
    found = scale(predicted, measured)
    assert found.factor == pytest.approx(1.0, abs=0.02)
    assert found.spread == pytest.approx(0.05, abs=0.03)
    assert scale(predicted[:5], measured[:5]).factor == 1.0


def _steady(seconds: float, num_ranks: int) -> Measurement:
    """A measurement in which all steps take the same."""
    return Measurement(
        step_seconds=((seconds,),) * num_ranks,
        median_seconds=seconds,
        low_seconds=seconds,
        high_seconds=seconds,
        num_warmup_steps=3,
        peak_memory_bytes=(0,) * num_ranks,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Nested(Costs):
    """Costs with figures of figures."""

    inner: Costs
    both: tuple[float, float] = (1e-3, 2e-3)


def test_figures_within_figures_can_be_moved() -> None:
    def by_both(costs: Costs, strategies: Sequence[Strategy]) -> Floats:
        assert isinstance(costs, Nested)
        return predict(costs.inner, strategies) + costs.both[1]

    prior = Nested(inner=PRIOR, **{one.name: getattr(PRIOR, one.name) for one in dataclasses.fields(PRIOR)})
    measured = trials(dataclasses.replace(GLOO, transfer_seconds=1.6e-3))
    knobs = (Parameter("inner.transfer_seconds", 0.5), Parameter("both", 0.01))
    found = calibrate(by_both, prior, measured, parameters=knobs).costs
    assert isinstance(found, Nested)
    assert found.inner.transfer_seconds == pytest.approx(1.6e-3, rel=0.2)
    assert found.both[1] == pytest.approx(2 * found.both[0])


@pytest.mark.parametrize("simulator", [AnalyticalSimulator, TimelineSimulator])
def test_trials_with_stages_teach_nothing_about_others(
    simulator: type[AnalyticalSimulator | TimelineSimulator],
) -> None:
    model, cluster = chain(4, batch_size=8), nodes(1, 1)
    stages = [ModelStage(before=2 * number, ranks=(number,)) for number in range(2)]
    schedules: tuple[PipelineSchedule, ...] = ("gpipe", "1f1b")
    divided = [divided_strategy(model, stages, count, one) for count in (2, 4, 8, 16) for one in schedules]
    records = [record_of(one, model, cluster, seconds=1e3, trial=trial) for trial, one in enumerate(divided)]
    assert len(trials_of(records, model, cluster)) >= MIN_TRIALS
    plain = [build_preset("ddp", model, cluster)]
    taught = simulator(model, cluster, costs=GLOO)
    before = taught.predict(plain)
    taught.learn(records)
    assert taught.predict(plain) == before


def test_links_that_are_slower_than_predicted_are_learned() -> None:
    """A share of a link cannot be tried above 1, so its slope is that towards slower links."""

    def by_share(costs: Costs, strategies: Sequence[Strategy]) -> Floats:
        return predict(PRIOR, strategies) / costs.link_share

    slow = [dataclasses.replace(one, seconds=one.seconds / 0.9) for one in trials(PRIOR)]
    found = calibrate(by_share, GLOO, slow, parameters=(Parameter("link_share", 0.03),))
    assert GLOO.link_share > 0.96
    assert found.costs.link_share == pytest.approx(0.9, rel=0.01)
