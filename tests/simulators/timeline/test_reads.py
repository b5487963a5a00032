"""Reads of the input pipeline beside a plan's messages, against times by hand and against a small model of fluids."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest

from autosync.right_of_way import LOOK_SECONDS
from autosync.simulators.timeline import lanes
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.specs.cluster import ClusterSpec, Rack
from autosync.specs.cluster_file import load_cluster
from autosync.specs.costs import Costs
from autosync.specs.input_cost import InputCost
from autosync.specs.input_settings import InputSettings
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Message, Strategy
from autosync.testing.simulators import FREE, two_layers
from tests.helpers.example_costs import GLOO
from tests.helpers.example_plans import cluster_of

RATE = 1e8
COMPUTE_SECONDS = 0.06
MESSAGE_BYTES = 20e6
ALONE = COMPUTE_SECONDS + MESSAGE_BYTES / RATE
"""The step of two hosts that send all gradients after all compute."""

PLAIN = Strategy(messages=(Message(parts=("second", "first")),))


def model_of(*, example_bytes: float = 0.0, worker_seconds: float = 0.0) -> ModelSpec:
    return replace(two_layers(), input=InputCost(example_bytes=example_bytes, worker_seconds=worker_seconds))


def with_input(num_workers: int, prefetch_factor: int = 2) -> Strategy:
    return replace(PLAIN, input=InputSettings(num_workers=num_workers, prefetch_factor=prefetch_factor))


def seconds_of(
    strategy: Strategy, model: ModelSpec, *, storage: float | None = None, costs: Costs = FREE, num_hosts: int = 2
) -> float:
    cluster = _served(cluster_of(*[1] * num_hosts), storage)
    (found,) = TimelineSimulator(model, cluster, costs=costs).predict([strategy])
    return found.seconds


def _served(cluster: ClusterSpec, storage: float | None) -> ClusterSpec:
    return replace(cluster, nodes=tuple(replace(node, storage=storage) for node in cluster.nodes))


@pytest.mark.parametrize("costs", [FREE, GLOO])
def test_nothing_changes_without_settings_or_without_a_cost(costs: Costs) -> None:
    alone = seconds_of(PLAIN, two_layers(), costs=costs)
    assert seconds_of(PLAIN, model_of(example_bytes=1e9, worker_seconds=1.0), costs=costs) == alone
    assert seconds_of(with_input(2), two_layers(), costs=costs) == alone
    assert seconds_of(with_input(2), model_of(), costs=costs) == alone


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_a_slow_storage_decides_the_step(num_workers: int) -> None:
    found = seconds_of(with_input(num_workers), model_of(example_bytes=10e6), storage=RATE / 5)
    assert found == pytest.approx(0.5, rel=0.01)


def test_workers_share_the_work_of_batches() -> None:
    work = {workers: seconds_of(with_input(workers), model_of(worker_seconds=1.2)) for workers in (1, 2, 4, 8)}
    assert work[1] == pytest.approx(1.2, rel=1e-3)
    assert work[2] == pytest.approx(0.6, rel=1e-3)
    assert work[4] == pytest.approx(0.3, rel=1e-3)
    assert work[8] == pytest.approx(ALONE, rel=1e-2)


def test_a_strategy_without_settings_reads_as_the_task_states() -> None:
    for stated, seconds in ((None, 0.6), (InputSettings(num_workers=4), 0.3)):
        model = replace(two_layers(), input=InputCost(worker_seconds=1.2, by_loader=True, stated=stated))
        assert seconds_of(PLAIN, model) == pytest.approx(seconds, rel=1e-3)


def test_more_workers_than_are_simulated_share_it_too() -> None:
    assert seconds_of(with_input(40), model_of(worker_seconds=40 * 0.5)) == pytest.approx(0.5, rel=1e-2)


def test_a_worker_reads_and_then_makes_the_batch() -> None:
    # So few bytes that they are not in the way of messages.
    model = model_of(example_bytes=1e6, worker_seconds=0.4)
    assert seconds_of(with_input(1), model, storage=RATE / 20) == pytest.approx(0.2 + 0.4, rel=0.02)
    # Two workers take turns at best; in step, they share the storage and then leave it idle.
    assert 0.3 * 0.99 <= seconds_of(with_input(2), model, storage=RATE / 20) <= 0.4 * 1.01


def test_workers_share_processors_only_while_they_are_busy() -> None:
    # Two ranks' batches take a worker 0.4 s each, and there is one processor, for which messages wait too.
    found = {}
    for cpu_seconds in (None, 0.4, 0.1, 0.0):
        model = replace(two_layers(), input=InputCost(worker_seconds=0.4, cpu_seconds=cpu_seconds))
        found[cpu_seconds] = seconds_of(with_input(8), model, costs=replace(FREE, num_processors=1))
    assert found[None] == found[0.4]
    assert 0.8 < found[0.4] < 1.2
    assert found[0.1] < 0.5
    assert found[0.0] == pytest.approx(ALONE, rel=0.01)


def test_without_workers_everything_takes_turns() -> None:
    model = model_of(example_bytes=5e6, worker_seconds=0.1)
    found = seconds_of(with_input(0), model, storage=RATE / 2)
    assert found == pytest.approx(ALONE + 0.1 + 0.1, rel=0.01)


def test_an_uplink_of_the_reader_limits_reads() -> None:
    cluster = cluster_of(1, 1)
    nodes = tuple(replace(node, rack="r") for node in cluster.nodes)
    narrow = replace(cluster, nodes=nodes, racks=(Rack(name="r", uplink_out=RATE, uplink_in=RATE / 10),))
    (found,) = TimelineSimulator(model_of(example_bytes=5e6), narrow, costs=FREE).predict([with_input(2)])
    # Both hosts read over it.
    assert found.seconds == pytest.approx(2 * 5e6 / (RATE / 10), rel=0.02)


def test_one_slow_host_delays_all_and_shares_help() -> None:
    cluster = cluster_of(1, 1)
    nodes = (replace(cluster.nodes[0], storage=RATE), replace(cluster.nodes[1], storage=RATE / 4))
    cluster = replace(cluster, nodes=nodes)
    model = replace(model_of(example_bytes=4e6), batch_size=10)
    (even, dealt) = TimelineSimulator(model, cluster, costs=FREE).predict(
        [with_input(2), replace(with_input(2), shares=(15, 5))]
    )
    assert even.seconds == pytest.approx(40e6 / (RATE / 4), rel=0.02)
    assert dealt.seconds < 0.62 * even.seconds


def test_a_step_that_waits_for_its_batch_says_so() -> None:
    cluster = _served(cluster_of(2, 1), RATE / 5)
    simulator = TimelineSimulator(model_of(example_bytes=10e6, worker_seconds=0.02), cluster, costs=FREE)
    explanation = simulator.explain(with_input(1))
    first = explanation.critical_path[0]
    assert (first.kind, first.name, first.operation) == ("input", "waiting for input", None)
    # Two ranks of the first node share what storage gives it.
    assert explanation.seconds == pytest.approx(2 * 10e6 / (RATE / 5) + 0.02, rel=0.03)
    busy = {one.link: one.busy_share for one in explanation.links}
    assert busy["storage of n0"] == pytest.approx(1.0, rel=0.04)
    assert busy["storage of n1"] == pytest.approx(0.5, rel=0.04)
    spans = [one for one in simulator.trace(with_input(2)) if one.get("cat") == "input"]
    assert {one["name"] for one in spans} == {"read", "make the batch"}
    assert {one["pid"] for one in spans} == {0, 1, 2}


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_more_to_read_and_to_make_never_shortens_a_step_on_shared_processors(num_workers: int) -> None:
    cluster = load_cluster("2-hosts")
    found = [
        TimelineSimulator(model_of(example_bytes=size, worker_seconds=work), cluster).predict([with_input(num_workers)])
        for size, work in ((1e3, 0.0), (1e6, 0.01), (4e6, 0.1), (4e7, 0.2))
    ]
    seconds = [one.seconds for (one,) in found]
    alone = TimelineSimulator(two_layers(), cluster).predict([PLAIN])[0].seconds
    assert seconds[0] == pytest.approx(alone, rel=0.03)
    assert all(after >= before * 0.98 for before, after in pairwise(seconds))


def test_reads_that_give_way_look_as_often_as_real_ones() -> None:
    assert lanes._LOOK_SECONDS == LOOK_SECONDS


@dataclass
class _Fluid:
    """One of two equal hosts: compute, then a message into it, which shares the link with reads, byte by byte.

    Written for this test only: it knows nothing of requests, pieces or queues.
    """

    batch_bytes: float
    storage: float
    num_workers: int
    prefetch_factor: int
    under_way_bytes: float | None = None
    """The bytes that reads finish before they give way; None: they do not."""
    tick_seconds: float = 2e-4

    def step_seconds(self, num_steps: int = 12) -> float:
        """Return the mean of the last steps."""
        allowed = self.num_workers * self.prefetch_factor
        made, taken, left_of_batch = 0, 0, self.batch_bytes
        now, ends = 0.0, list[float]()
        compute, message, waits, finishes = 0.0, 0.0, True, 0.0
        while len(ends) < num_steps:
            if waits and made > taken:
                taken, waits, compute, message = taken + 1, False, COMPUTE_SECONDS, MESSAGE_BYTES
            is_reading = made - taken < allowed + (1 if waits else 0)
            is_sending = not waits and compute <= 0
            read_rate = min(self.storage, RATE / 2 if is_sending else RATE) if is_reading else 0.0
            if self.under_way_bytes is not None:
                finishes = finishes - read_rate * self.tick_seconds if is_sending else self.under_way_bytes
                read_rate = 0.0 if is_sending and finishes <= 0 else read_rate
            now += self.tick_seconds
            left_of_batch -= read_rate * self.tick_seconds
            if left_of_batch <= 0:
                made, left_of_batch = made + 1, left_of_batch + self.batch_bytes
            if is_sending:
                message -= (RATE - read_rate) * self.tick_seconds
                if message <= 0:
                    waits = True
                    ends.append(now)
            elif not waits:
                compute -= self.tick_seconds
        return float(np.mean(np.diff(ends)[num_steps // 2 :]))


@pytest.mark.parametrize("batch_bytes", [2e6, 10e6, 30e6, 60e6])
@pytest.mark.parametrize("storage", [RATE / 4, RATE / 2, RATE])
@pytest.mark.parametrize("gives_way", [False, True])
def test_reads_share_the_link_with_messages_as_fluids_do(batch_bytes: float, storage: float, gives_way: bool) -> None:
    # Each of two workers has one request under way, of half a megabyte at most.
    fluid = _Fluid(batch_bytes, storage, 2, 2, under_way_bytes=min(2 * 500e3, batch_bytes) if gives_way else None)
    expected = fluid.step_seconds()
    strategy = with_input(2)
    if gives_way:
        settings = InputSettings(right_of_way="gradients", read_bytes=2**19, read_concurrency=1)
        strategy = replace(PLAIN, input=settings)
    found = seconds_of(strategy, model_of(example_bytes=batch_bytes), storage=storage)
    assert found == pytest.approx(expected, rel=0.03 if gives_way else 0.02)
