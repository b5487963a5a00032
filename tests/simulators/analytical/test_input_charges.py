"""The reads that the analytical simulator charges: by hand, and against the timeline, which plays them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.simulators.analytical.simulator import AnalyticalSimulator
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.specs.cluster import ClusterSpec, Rack
from autosync.specs.costs import Costs
from autosync.specs.input_cost import InputCost
from autosync.specs.input_settings import InputSettings
from autosync.specs.model import ModelSpec
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Message, Strategy
from autosync.testing.simulators import FREE, two_layers
from tests.helpers.example_costs import GLOO
from tests.helpers.example_plans import cluster_of

RATE = 1e8
ALONE = 0.06 + 20e6 / RATE
"""The step of two hosts that send all gradients after all compute."""

PLAIN = Strategy(messages=(Message(parts=("second", "first")),))


def model_of(*, example_bytes: float = 0.0, worker_seconds: float = 0.0, by_loader: bool = False) -> ModelSpec:
    cost = InputCost(example_bytes=example_bytes, worker_seconds=worker_seconds, by_loader=by_loader)
    return replace(two_layers(), input=cost)


def with_input(num_workers: int, strategy: Strategy = PLAIN) -> Strategy:
    return replace(strategy, input=InputSettings(num_workers=num_workers))


def served(cluster: ClusterSpec, storage: float | None) -> ClusterSpec:
    return replace(cluster, nodes=tuple(replace(node, storage=storage) for node in cluster.nodes))


def seconds_of(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> float:
    return AnalyticalSimulator(model, cluster, costs=FREE).predict([strategy])[0].seconds


def test_nothing_is_charged_without_settings_or_without_a_cost() -> None:
    cluster = cluster_of(1, 1)
    alone = seconds_of(PLAIN, two_layers(), cluster)
    assert alone == pytest.approx(ALONE, rel=0.02)
    assert seconds_of(PLAIN, model_of(example_bytes=1e9, worker_seconds=1.0), cluster) == alone
    assert seconds_of(with_input(2), two_layers(), cluster) == alone
    assert seconds_of(with_input(2), model_of(), cluster) == alone


def test_a_task_with_a_dataset_has_the_loaders_defaults() -> None:
    cluster, model = cluster_of(1, 1), model_of(worker_seconds=1.2, by_loader=True)
    assert seconds_of(PLAIN, model, cluster) == seconds_of(with_input(2), model, cluster) == pytest.approx(0.6)
    simulator = AnalyticalSimulator(model, cluster, costs=FREE)
    np.testing.assert_allclose(simulator.predict_columns(simulator.encode([PLAIN])), 0.6)
    (played,) = TimelineSimulator(model, cluster, costs=FREE).predict([PLAIN])
    assert played.seconds == pytest.approx(0.6, rel=1e-3)


def test_workers_storage_and_links_each_may_decide() -> None:
    cluster = cluster_of(1, 1)
    assert seconds_of(with_input(4), model_of(worker_seconds=1.2), cluster) == pytest.approx(0.3)
    assert seconds_of(with_input(2), model_of(example_bytes=10e6), served(cluster, RATE / 5)) == pytest.approx(0.5)
    # 20 MB of gradients come over the interface beside 20 MB of examples, while 0.2 s of the step have gradients.
    assert seconds_of(with_input(2), model_of(example_bytes=20e6), cluster) == pytest.approx(0.4)
    assert seconds_of(with_input(2), model_of(example_bytes=3e6), cluster) == pytest.approx(ALONE, rel=0.02)


def test_without_workers_input_comes_first() -> None:
    cluster, model = served(cluster_of(1, 1), RATE / 2), model_of(example_bytes=5e6, worker_seconds=0.1)
    assert seconds_of(with_input(0), model, cluster) == pytest.approx(ALONE + 0.1 + 0.1, rel=0.02)


def test_an_uplink_of_readers_is_shared() -> None:
    cluster = cluster_of(1, 1)
    nodes = tuple(replace(node, rack="r") for node in cluster.nodes)
    narrow = replace(cluster, nodes=nodes, racks=(Rack(name="r", uplink_out=RATE, uplink_in=RATE / 10),))
    assert seconds_of(with_input(2), model_of(example_bytes=5e6), narrow) == pytest.approx(1.0)


def test_nodes_that_are_one_class_are_charged_as_the_worst_served() -> None:
    large = cluster_of(*[1] * 65)
    nodes = (replace(large.nodes[0], storage=RATE / 10), *large.nodes[1:])
    model = model_of(example_bytes=10e6)
    assert seconds_of(with_input(2), model, replace(large, nodes=nodes)) == pytest.approx(1.0)
    assert seconds_of(with_input(2), model, large) < 0.6


@settings(max_examples=60, deadline=None)
@given(
    preset=st.sampled_from(["ddp", "ps", "sharded", "p3"]),
    num_workers=st.sampled_from([0, 1, 2, 4]),
    example_bytes=st.sampled_from([0.0, 2e6, 10e6, 30e6]),
    worker_seconds=st.sampled_from([0.0, 0.05, 0.4]),
    storage=st.sampled_from([None, RATE, RATE / 4]),
    hosts=st.sampled_from([(1, 1), (1, 1, 1), (2, 1)]),
    costs=st.sampled_from([FREE, GLOO]),
)
def test_it_is_near_the_timeline(
    preset: str,
    *,
    num_workers: int,
    example_bytes: float,
    worker_seconds: float,
    storage: float | None,
    hosts: tuple[int, ...],
    costs: Costs,
) -> None:
    cluster = served(cluster_of(*hosts), storage)
    bare, model = two_layers(), model_of(example_bytes=example_bytes, worker_seconds=worker_seconds)
    plain = build_preset(preset, bare, cluster)
    strategy = with_input(num_workers, plain)
    charged, played = (
        simulator(model, cluster, costs=costs).predict([plain, strategy])
        for simulator in (AnalyticalSimulator, TimelineSimulator)
    )
    without, found = (charged[which].seconds / played[which].seconds for which in (0, 1))
    assert charged[1].seconds >= charged[0].seconds * (1 - 1e-9)
    # Without workers, ranks that are done early read while others still get messages.
    most = 1.15 if num_workers else 1.6
    assert min(0.6, without - 0.02) < found < max(most, without + 0.02)
