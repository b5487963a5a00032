"""Plans played from afar: what can be reckoned by hand, and what holds for all of them."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.plan.bound import bound
from autosync.plan.lowering import lower
from autosync.plan.types import Transfer
from autosync.simulators.costs import Costs
from autosync.simulators.symmetry import apart
from autosync.simulators.timeline.flows import Flows
from autosync.simulators.timeline.kernel import simulate
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import AllReduce, Message, ParameterServer, Strategy
from autosync.strategy.space import Space
from autosync.testing.generate import random_cluster, random_model
from autosync.testing.plans import cluster_of
from autosync.testing.simulators import FREE, two_layers

RATE = 1e8


def seconds_of(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec, costs: Costs = FREE) -> float:
    return Flows(model, cluster, costs=costs).seconds(lower(strategy, model, cluster))


def messages(*names: tuple[str, ...], lanes: bool = False, **options: object) -> Strategy:
    made = [Message(parts=parts, lane=number if lanes else 0) for number, parts in enumerate(names)]
    return replace(Strategy(messages=tuple(made)), **options)  # type: ignore[arg-type]


def test_a_message_after_all_compute_takes_its_time_on_the_wire() -> None:
    """20 MB among two hosts: each sends half of it twice."""
    found = seconds_of(messages(("second", "first")), two_layers(), cluster_of(1, 1))
    assert found == pytest.approx(0.06 + 20e6 / RATE, rel=1e-6)


def test_what_is_ready_first_hides_behind_the_rest_of_backward() -> None:
    found = seconds_of(messages(("second",), ("first",)), two_layers(), cluster_of(1, 1))
    assert found == pytest.approx(0.04 + 2 * 10e6 / RATE, rel=1e-6)


def test_lanes_share_a_link_evenly() -> None:
    """The second lane's message has 0.02 s of a head start, then both take half of the link: the first ends sooner."""
    model = two_layers()
    found = seconds_of(messages(("second",), ("first",), lanes=True), model, cluster_of(1, 1))
    assert found == pytest.approx(0.04 + 20e6 / RATE, rel=1e-6)
    plan = lower(messages(("second",), ("first",), lanes=True), model, cluster_of(1, 1))
    problem = Flows(model, cluster_of(1, 1), costs=FREE).problem(plan)
    outcome = simulate(problem, 4)
    ends = np.sort(outcome.ended[0][problem.is_transfer])
    assert ends - outcome.step_ends[0] == pytest.approx([-0.02, 0.0], abs=1e-6)


def test_transfers_go_on_into_the_next_forward_pass_up_to_each_use() -> None:
    """The wire is busy from the first gradient on: a step is its 0.2 s and whatever compute lies between two."""
    model = two_layers(forward=0.03)
    apart = seconds_of(messages(("second",), ("first",)), model, cluster_of(1, 1))
    along = seconds_of(messages(("second",), ("first",), overlap="forward"), model, cluster_of(1, 1))
    assert along < apart
    assert along >= 0.2


def test_a_server_with_many_workers_is_slowed_by_its_own_link() -> None:
    """Four workers beside a server: its link carries 4 times the gradients in, and 4 times the parameters out."""
    cluster = cluster_of(1, 1, 1, 1, 0)
    server = ParameterServer(server="n4")
    strategy = Strategy(messages=(Message(parts=("second", "first"), synchroniser=server),))
    assert seconds_of(strategy, two_layers(), cluster) == pytest.approx(0.06 + 2 * 4 * 20e6 / RATE, rel=1e-6)


def test_the_slowest_link_decides_a_ring() -> None:
    cluster = cluster_of(1, 1, 1)
    slow = replace(cluster.nodes[1], bandwidth_out=RATE / 4)
    found = seconds_of(
        messages(("second", "first")), two_layers(), replace(cluster, nodes=(cluster.nodes[0], slow, cluster.nodes[2]))
    )
    assert found == pytest.approx(0.06 + 4 / 3 * 20e6 / (RATE / 4), rel=1e-6)


def test_rounds_and_transfers_cost_what_costs_say() -> None:
    costs = replace(FREE, transfer_seconds=0.001, round_seconds=0.002)
    ring = Strategy(messages=(Message(parts=("second", "first"), synchroniser=AllReduce(topology="ring")),))
    found = seconds_of(ring, two_layers(), cluster_of(1, 1, 1), costs)
    assert found == pytest.approx(0.06 + 4 / 3 * 20e6 / RATE + 0.001 + 4 * 0.002, rel=1e-6)


def drawn(seed: int) -> tuple[Strategy, ModelSpec, ClusterSpec]:
    rng = random.Random(seed)
    model, cluster = random_model(rng), random_cluster(rng)
    return Space(model=model, cluster=cluster).sample(rng), model, cluster


@settings(deadline=None)
@given(seed=st.integers(0, 2**32))
def test_classes_stand_for_all_their_ranks(seed: int) -> None:
    """Each rank by itself comes to the same as one for all that are alike.

    A star's root adds up what comes from a class one after another. Of ranks by themselves each is added by itself, so
    there adding is left out.
    """
    strategy, model, cluster = drawn(seed)
    plan = lower(strategy, model, cluster)
    has_star = any(isinstance(one, Transfer) and one.algorithm == "star" for one in plan.operations)
    costs = Costs(num_processors=2, rate_added=math.inf if has_star else Costs().rate_added)
    together = Flows(model, cluster, costs=costs).play(plan, count=4)
    each = Flows(model, cluster, costs=costs, classes=apart(cluster)).play(plan, count=4)
    assert together.step_ends == pytest.approx(each.step_ends, rel=1e-6)


@settings(deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_exact_plan_beats_the_bound(seed: int) -> None:
    strategy, model, cluster = drawn(seed)
    if strategy.is_exact:
        assert seconds_of(strategy, model, cluster) >= bound(model, cluster).seconds * (1 - 1e-6)


@settings(deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_operation_of_a_step_takes_place(seed: int) -> None:
    """However lanes and gates hang together, every step ends, and everything that is due in it."""
    strategy, model, cluster = drawn(seed)
    plan = lower(strategy, model, cluster)
    problem = Flows(model, cluster, costs=Costs()).problem(plan)
    outcome = simulate(problem, 3)
    assert len(outcome.step_ends) == 3
    due = problem.every == 1
    assert np.isfinite(outcome.ended[0][due]).all()
    assert (outcome.begun[0][due] <= outcome.ended[0][due]).all()
