"""Features have names, are numbers, and mean the same whatever the size of things."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.simulators.features.choices import CHOICES, choice_features, complexity
from autosync.simulators.features.context import CONTEXT, context_features
from autosync.simulators.features.reader import GROUPS, FeatureGroup, StrategyReader, feature_names
from autosync.strategy.presets import build_preset
from autosync.strategy.space import Space
from autosync.testing.simulators import small_case
from tests.helpers.example_costs import GLOO
from tests.helpers.random_specs import random_cluster, random_model

_SETS: list[frozenset[FeatureGroup]] = [GROUPS, frozenset({"analytical"}), frozenset({"timeline"}), frozenset()]


@pytest.mark.parametrize("groups", _SETS)
def test_every_column_has_a_name(groups: frozenset[FeatureGroup]) -> None:
    case = small_case()
    reader = StrategyReader(case.model, case.cluster)
    read = reader.read(case.strategies[:6])
    features = reader.features(read, groups)
    names = feature_names(groups)
    assert features.values.shape == (6, len(names))
    assert len(set(names)) == len(names)
    assert np.isfinite(features.values).all()
    assert (features.seconds > 0).all()


def test_without_a_group_nothing_of_it_is_left() -> None:
    case = small_case()
    reader = StrategyReader(case.model, case.cluster)
    read = reader.read(case.strategies[:6])
    other = read._replace(timeline_seconds=read.timeline_seconds * 3)
    for groups, same in ((frozenset({"analytical"}), True), (frozenset(), True), (GROUPS, False)):
        one, two = reader.features(read, groups), reader.features(other, groups)
        assert np.array_equal(one.values, two.values) == same
    other = read._replace(totals=read.totals * 3, analytical_seconds=read.analytical_seconds * 3)
    one, two = reader.features(read, frozenset({"timeline"})), reader.features(other, frozenset({"timeline"}))
    assert np.array_equal(one.values, two.values)


def test_nothing_read_is_nothing() -> None:
    case = small_case()
    reader = StrategyReader(case.model, case.cluster)
    assert reader.features(reader.read([])).values.shape == (0, len(feature_names()))


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_choices_are_of_all_strategies_and_do_not_depend_on_how_they_are_written(seed: int) -> None:
    rng = random.Random(seed)
    model, cluster = random_model(rng), random_cluster(rng)
    strategy = Space(model=model, cluster=cluster).sample(rng)
    found = choice_features(strategy, model, cluster)
    assert tuple(found) == CHOICES
    assert np.isfinite(list(found.values())).all()
    shares = ("all_reduce.", "server.updates", "server.adds_up", "sharded.", "rows.", "factors.", "periodic")
    wholes = [
        share
        for name, share in found.items()
        if name.removeprefix("strategy.").startswith(shares) and not name.endswith(("hierarchical", "proxy"))
    ]
    assert sum(wholes) == pytest.approx(1.0)
    written = dataclasses.replace(strategy, name="other", messages=strategy.messages[::-1])
    again = choice_features(written, model, cluster)
    assert list(again.values()) == pytest.approx(list(found.values()), abs=1e-9)
    assert complexity(written) == complexity(strategy)


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), factor=st.sampled_from([0.25, 3.0, 100.0]))
def test_context_is_the_same_in_slow_motion(seed: int, factor: float) -> None:
    """Compute so many times as long on links so many times as slow, and all that takes time besides."""
    rng = random.Random(seed)
    model, cluster = random_model(rng), dataclasses.replace(random_cluster(rng), calibration=None)
    nodes = tuple(
        dataclasses.replace(node, bandwidth_out=node.bandwidth_out / factor, bandwidth_in=node.bandwidth_in / factor)
        for node in cluster.nodes
    )
    racks = tuple(
        dataclasses.replace(rack, uplink_out=rack.uplink_out / factor, uplink_in=rack.uplink_in / factor)
        for rack in cluster.racks
    )
    slow = dataclasses.replace(cluster, nodes=nodes, racks=racks)
    costs = GLOO
    slow_costs = dataclasses.replace(
        costs,
        round_seconds=costs.round_seconds * factor,
        native_round_seconds=costs.native_round_seconds * factor,
    )
    found = context_features(model, cluster, costs)
    assert tuple(found) == CONTEXT
    again = context_features(model.dilated(factor), slow, slow_costs)
    assert list(again.values()) == pytest.approx(list(found.values()), rel=1e-6)


def test_more_pieces_are_more_complicated() -> None:
    case = small_case()
    simple, many = (build_preset(name, case.model, case.cluster) for name in ("ddp", "all_reduce_per_variable"))
    assert complexity(simple) < complexity(many)
