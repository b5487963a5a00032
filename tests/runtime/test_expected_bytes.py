"""The expected bytes of messages: those of the plans of all sampled steps, and never more than planned."""

import random
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.plan.lowering import lower
from autosync.plan.traffic import amortised_traffic
from autosync.runtime.varying.expected_bytes import expected_traffic, travelled_shares
from autosync.runtime.varying.may_stay import may_stay
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.specs.use_sample import UseSample
from autosync.strategy.representation import Message, Strategy, without
from autosync.strategy.space import Limits, Space
from autosync.strategy.synchronisers.sharded import Sharded
from tests.helpers.example_plans import cluster_of, model_of
from tests.helpers.random_specs import clusters, models
from tests.helpers.use_samples import with_uses

WIDE = Limits(allow=("lossy", "stale"), staleness=(1, 2), periods=(2, 3))


@settings(max_examples=200)
@given(models(), clusters(backends=["gloo"]), st.integers(0, 2**32 - 1))
def test_expected_bytes_are_the_mean_over_all_steps(model: ModelSpec, cluster: ClusterSpec, seed: int) -> None:
    rng = random.Random(seed)
    model = with_uses(model, rng, num_ranks=cluster.num_workers)
    strategy = Space(model=model, cluster=cluster, limits=WIDE).sample(rng)
    plan = lower(strategy, model, cluster)
    found, planned = expected_traffic(plan, model, cluster), amortised_traffic(plan, cluster)
    assert (found.links <= planned.links + 1e-9).all()
    if model.use_sample is None:
        assert (found.links == planned.links).all()
        return
    facts, totals = may_stay(plan), []
    for step in model.use_sample.steps:
        unused = [
            name
            for place, group in enumerate(model.use_sample.groups)
            if all(one[place] == "0" for one in step)
            for name in group
        ]
        travelling = without(strategy, facts.staying(unused))
        totals.append(float(amortised_traffic(lower(travelling, model, cluster), cluster).links.sum()))
    assert float(found.links.sum()) == pytest.approx(statistics.fmean(totals), rel=1e-9)


def test_always_used_variables_travel_always_and_a_message_in_part() -> None:
    model = replace(model_of(), use_sample=UseSample(groups=(("linear",),), steps=(("0", "1"), ("0", "0"))))
    cluster = cluster_of(1, 1)
    strategy = Strategy(messages=(Message(parts=("linear", "bias")), Message(parts=("table",))))
    plan = lower(strategy, model, cluster)
    (shares,) = [travelled_shares(plan, sample) for sample in [model.use_sample] if sample is not None]
    # Half of the steps have the 20 elements of one beside the 5 of the other.
    assert list(shares.values()) == [pytest.approx((0.5 * 20 + 5) / 25)]
    assert expected_traffic(lower(strategy, model, cluster_of(1)), model, cluster_of(1)).links.sum() == 0


def test_what_must_travel_as_a_whole_travels_if_any_of_it_is_used() -> None:
    model = replace(model_of(), use_sample=UseSample(groups=(("linear",), ("bias",)), steps=(("01",), ("00",))))
    cluster = cluster_of(1, 1)
    together = Message(parts=("linear", "bias"), synchroniser=Sharded())
    plan = lower(Strategy(messages=(together, Message(parts=("table",)))), model, cluster)
    assert model.use_sample is not None
    assert set(travelled_shares(plan, model.use_sample).values()) == {0.75}
