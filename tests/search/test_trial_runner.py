"""A trial as a record: measured as long as the effort says, stopped if clearly worse, or failed with a reason."""

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.datasets.facts import cluster_spec, model_spec
from autosync.plan.bound import bound
from autosync.search.candidates import STOCK_DDP, candidate, default_as_strategy
from autosync.search.measurement_effort import FEWEST_STEPS, NORMAL_EFFORT, Effort
from autosync.search.prepared_trial import TrialPreparer
from autosync.search.trial_runner import TrialRunner
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.specs.untrained import Untrained
from autosync.specs.use_sample import UseSample
from autosync.strategy.emit.settings import DdpSettings
from autosync.strategy.presets import build_preset
from autosync.testing.trials import FakeService, FakeSteps
from autosync.trials.failures import Blame
from autosync.trials.policy import Policy


def _trials(steps: FakeSteps, model: ModelSpec, cluster: ClusterSpec, effort: Effort = NORMAL_EFFORT) -> TrialRunner:
    service = FakeService({}, others=steps)
    return TrialRunner(
        study="s", service=service, preparer=TrialPreparer(model, cluster), is_replayed=False, effort=effort
    )


def test_a_trial_takes_as_many_steps_as_its_noise_needs(model: ModelSpec, cluster: ClusterSpec) -> None:
    quiet = _trials(FakeSteps(seconds=0.1, noise=0.001), model, cluster).run(STOCK_DDP, 0).measurement
    noisy = _trials(FakeSteps(seconds=0.1, noise=0.2), model, cluster).run(STOCK_DDP, 0).measurement
    assert quiet is not None
    assert noisy is not None
    assert quiet.num_steps < 20 < noisy.num_steps <= NORMAL_EFFORT.trial.max_steps
    assert quiet.num_warmup_steps >= 4
    assert quiet.exposed_seconds == pytest.approx(0.08, rel=0.05)
    assert "noisy" in noisy.flags


def test_the_effort_says_how_much_is_measured(model: ModelSpec, cluster: ClusterSpec) -> None:
    effort = Effort(trial=Policy(max_warmup_steps=4, min_steps=4, max_steps=5, budget_seconds=9.0))
    record = _trials(FakeSteps(seconds=0.1, noise=0.2), model, cluster, effort).run(STOCK_DDP, 0)
    assert record.measurement is not None
    assert record.measurement.num_steps <= 9


def test_long_steps_are_fewer(model: ModelSpec, cluster: ClusterSpec) -> None:
    trials = _trials(FakeSteps(seconds=1.5, noise=0.002, num_warmup_steps=1), model, cluster)
    many = trials.run(STOCK_DDP, 0, best_seconds=0.1).measurement
    few = trials.run(STOCK_DDP, 1, best_seconds=1.5).measurement
    assert many is not None
    assert few is not None
    assert (few.num_warmup_steps, few.num_steps) == (2, 4)
    assert many.num_warmup_steps >= 4
    assert few.flags == ()


def test_before_the_first_trial_steps_take_as_long_as_the_bound_says(model: ModelSpec, cluster: ClusterSpec) -> None:
    effort = Effort(trial_seconds=1e-6)
    trials = _trials(FakeSteps(seconds=1.5, noise=0.002), model, cluster, effort)
    assert trials.policy(None) == effort.policy(bound(model, cluster).seconds)
    assert trials.proof_policy(None) == effort.proof_policy(bound(model, cluster).seconds)


@given(
    step_seconds=st.floats(1e-3, 100.0),
    trial_seconds=st.floats(0.1, 100.0),
    min_warmup_steps=st.integers(2, 8),
    window_steps=st.integers(2, 8),
    min_steps=st.integers(1, 40),
)
def test_a_paced_trial_is_no_longer_than_a_whole_one(
    step_seconds: float, trial_seconds: float, min_warmup_steps: int, window_steps: int, min_steps: int
) -> None:
    whole = Policy(min_warmup_steps=min_warmup_steps, window_steps=window_steps, min_steps=min_steps)
    effort = Effort(trial=whole, trial_seconds=trial_seconds)
    paced = effort.policy(step_seconds)
    assert 2 <= paced.min_warmup_steps <= min_warmup_steps
    assert 2 <= paced.window_steps <= window_steps
    assert 1 <= paced.min_steps <= min_steps
    assert paced.budget_seconds <= whole.budget_seconds
    assert paced.min_warmup_steps + paced.min_steps <= max(FEWEST_STEPS, trial_seconds / step_seconds + 1)
    assert effort.policy(step_seconds / 8, 8) == paced
    proof = effort.proof_policy(step_seconds)
    assert proof == Effort(trial=whole, trial_seconds=trial_seconds / 2).policy(step_seconds)
    assert proof.min_warmup_steps <= paced.min_warmup_steps
    assert proof.window_steps <= paced.window_steps
    assert Effort(trial=whole).proof_policy(step_seconds) == whole


def test_a_trial_of_long_periods_keeps_to_its_time(model: ModelSpec, cluster: ClusterSpec) -> None:
    every, seconds = 32, 0.05
    trials = _trials(FakeSteps(seconds=seconds, noise=0.001, num_warmup_steps=0), model, cluster)
    averaging = candidate("x", build_preset("local_sgd", model, cluster, every=every), model, cluster)
    assert trials.run(averaging, 0, best_seconds=seconds).measurement is not None
    assert isinstance(trials.service, FakeService)
    assert trials.service.now_seconds < (FEWEST_STEPS + 1) * every * seconds


def test_what_is_clearly_worse_is_stopped_and_says_so(model: ModelSpec, cluster: ClusterSpec) -> None:
    trials = _trials(FakeSteps(seconds=0.2, noise=0.05), model, cluster)
    candidate = default_as_strategy(model, cluster)
    stopped = trials.run(candidate, 3, best_seconds=0.1)
    assert stopped.measurement is not None
    assert "stopped_early" in stopped.measurement.flags
    assert stopped.failure is None
    assert stopped.strategy_id == candidate.strategy_id
    on_its_own = trials.run(candidate, 4).measurement
    assert on_its_own is not None
    assert "stopped_early" not in on_its_own.flags
    assert stopped.measurement.num_steps < on_its_own.num_steps


@pytest.mark.parametrize(("share", "is_busy"), [(0.15, False), (0.16, True), (None, False)])
def test_what_other_programs_use_is_written_down(
    share: float | None, is_busy: bool, model: ModelSpec, cluster: ClusterSpec
) -> None:
    trials = _trials(FakeSteps(seconds=0.1, noise=0.001), model, cluster)
    found = replace(trials, others_share=None if share is None else lambda: share).run(STOCK_DDP, 0).measurement
    assert found is not None
    assert found.other_cpu_share == share
    assert ("busy_machine" in found.flags) == is_busy


def test_a_failure_is_a_record(model: ModelSpec, cluster: ClusterSpec) -> None:
    record = _trials(FakeSteps(seconds=0.1, fails_at=5), model, cluster).run(STOCK_DDP, 7)
    assert (record.trial, record.measurement) == (7, None)
    assert record.failure is not None
    assert (record.failure.kind, record.failure.message) == ("raised", "rank 0: stock DDP fails here")


@pytest.mark.parametrize("blame", ["strategy", "machines", "either"])
def test_an_ended_trial_says_whose_fault_its_failure_may_be(
    blame: Blame, model: ModelSpec, cluster: ClusterSpec
) -> None:
    failing = _trials(FakeSteps(seconds=0.1, fails_at=5, blame=blame), model, cluster)
    assert failing.attempt(STOCK_DDP, 0).blame == blame
    assert _trials(FakeSteps(seconds=0.1), model, cluster).attempt(STOCK_DDP, 0).blame is None


def test_a_record_tells_how_many_processors_all_ranks_share(model: ModelSpec, cluster: ClusterSpec) -> None:
    steps = FakeSteps(seconds=0.1)
    assert _trials(steps, model, replace(cluster, launcher="testbed")).run(STOCK_DDP, 0).environment[
        "processors"
    ] == str(os.cpu_count())
    assert "processors" not in _trials(steps, model, replace(cluster, launcher="ssh")).run(STOCK_DDP, 0).environment


def test_stock_ddp_is_told_of_unused_parameters_where_they_are(model: ModelSpec, cluster: ClusterSpec) -> None:
    unused = replace(model, untrained=(Untrained(name="head", shape=(2,), reason="unused"),))
    trials = _trials(FakeSteps(seconds=0.1), unused, cluster)
    assert trials.contestant(STOCK_DDP).ddp.find_unused_parameters
    assert not replace(trials, is_replayed=True).contestant(STOCK_DDP).ddp.find_unused_parameters


def test_stock_ddp_with_a_strategys_buckets_is_told_of_parameters_that_some_steps_do_not_use(
    model: ModelSpec, cluster: ClusterSpec
) -> None:
    """DDP fills these buckets in another order, but a user would try the same cap."""
    last = max(model.variables, key=lambda variable: variable.ready)
    sample = UseSample(groups=((last.name,),), steps=(("0", "1"),))
    trials = _trials(FakeSteps(seconds=0.1), replace(model, use_sample=sample), cluster)
    one = candidate("x", build_preset("all_reduce_per_variable", model, cluster), model, cluster)
    (expected, found) = (each.ddp_settings(one) for each in (_trials(FakeSteps(seconds=0.1), model, cluster), trials))
    assert found == replace(expected, find_unused_parameters=True)
    for is_replayed in (False, True):
        assert replace(trials, is_replayed=is_replayed).ddp_settings(STOCK_DDP).find_unused_parameters


def test_for_stock_ddp_a_strategy_is_a_setting(model: ModelSpec, cluster: ClusterSpec) -> None:
    trials = replace(_trials(FakeSteps(seconds=0.1), model, cluster), target="ddp")
    one = candidate("x", build_preset("all_reduce_per_variable", model, cluster), model, cluster)
    contestant = trials.contestant(one)
    assert contestant.bundle is None
    assert contestant.ddp == DdpSettings(bucket_cap_mb=contestant.ddp.bucket_cap_mb, gradient_as_bucket_view=True)
    record = trials.run(one, 0)
    assert (record.strategy_id, record.environment["engine"]) == (one.strategy_id, "torch_ddp")
    # What records tell is of our engine.
    assert replace(trials, is_recorded=True).contestant(one).bundle is not None


def test_what_is_never_used_is_frozen_where_it_is_there(model: ModelSpec, cluster: ClusterSpec) -> None:
    unused = replace(model, untrained=(Untrained(name="head", shape=(2,), reason="unused"),))
    trials = replace(_trials(FakeSteps(seconds=0.1), unused, cluster), target="ddp")
    ours = default_as_strategy(unused, cluster)
    assert trials.contestant(ours).ddp.frozen == ("head",)
    assert replace(trials, is_replayed=True).contestant(ours).ddp.frozen == ()


def test_a_record_says_all_that_is_known_beside_the_measurement(model: ModelSpec, cluster: ClusterSpec) -> None:
    shares = iter([0.9, 0.25])
    trials = replace(_trials(FakeSteps(seconds=0.1), model, cluster), dilation=4.0, others_share=lambda: next(shares))
    record = trials.run(default_as_strategy(model, cluster), 0)
    assert record.plan is not None
    assert record.plan.num_messages >= 1
    assert record.plan.num_sends >= 4
    assert (record.model_spec, record.cluster_spec) == (model_spec(model).spec_id, cluster_spec(cluster).spec_id)
    assert record.dilation == 4.0
    assert record.measurement is not None
    # What others used before the trial is not counted.
    assert record.measurement.other_cpu_share == 0.25
    stock = _trials(FakeSteps(seconds=0.1), model, cluster).run(STOCK_DDP, 0)
    assert (stock.plan, stock.dilation) == (None, 1.0)
    assert stock.measurement is not None
    assert stock.measurement.other_cpu_share is None
