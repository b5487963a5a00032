"""Halving-doubling pairs nearest ranks first, in one order that plans, bytes and all who read plans share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.plan.expansion import expand
from autosync.plan.identity import plan_id
from autosync.plan.lowering import lower
from autosync.plan.traffic import Traffic, expanded_traffic, plan_traffic, transfer_traffic
from autosync.plan.types import Local, Plan, Transfer
from autosync.specs.cluster import ClusterSpec
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.shapes.pairing import nearest_first
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.base import Synchroniser
from autosync.strategy.synchronisers.periodic import Periodic
from autosync.strategy.synchronisers.sharded import Sharded
from tests.helpers.example_plans import WEIGHT, model_with
from tests.helpers.rack_clusters import pods_of
from tests.helpers.transfers import plain_transfer
from tests.strategy.shapes.test_levels import cluster_of, traffic_of

sizes_of_racks = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=4)
CLIP = 1.0


def order_of(cluster: ClusterSpec) -> tuple[int, ...]:
    return nearest_first(tuple(range(cluster.num_workers)), cluster)


def plan_over(cluster: ClusterSpec, synchroniser: Synchroniser, *, clip_norm: float | None = None) -> Plan:
    """The plan of one message."""
    strategy = Strategy(messages=(Message(parts=(WEIGHT.name,), synchroniser=synchroniser),))
    return lower(strategy, model_with(WEIGHT, clip_norm=clip_norm), cluster)


def crossing_by_round(cluster: ClusterSpec) -> list[int]:
    """How many chunks cross between racks in each round of halving."""
    order = order_of(cluster)
    found: dict[int, int] = {}
    for move in expand("reduce_scatter", "halving_doubling", len(order)):
        homes = [cluster.nodes[cluster.ranks[order[place]].node].rack for place in (move.source, move.destination)]
        found[move.round] = found.get(move.round, 0) + (move.last - move.first) * (homes[0] != homes[1])
    return [found[number] for number in sorted(found)]


@given(sizes_of_racks, st.integers(0, 3))
def test_the_order_has_every_rank_once(sizes: list[list[int]], loose: int) -> None:
    cluster = cluster_of(sizes, loose=loose)
    assert sorted(order_of(cluster)) == list(range(cluster.num_workers))


@pytest.mark.parametrize(
    "cluster", [cluster_of([[1] * 6]), cluster_of([], loose=7), cluster_of([[8]])], ids=["rack", "no racks", "node"]
)
def test_equally_near_ranks_keep_their_order(cluster: ClusterSpec) -> None:
    assert order_of(cluster) == tuple(range(cluster.num_workers))


def test_nodes_then_racks_then_between() -> None:
    """Two racks of two nodes with two ranks each: the largest part stays in the node, the next in the rack."""
    cluster = cluster_of([[2, 2], [2, 2]])
    assert order_of(cluster) == (0, 4, 2, 6, 1, 5, 3, 7)
    assert crossing_by_round(cluster) == [0, 0, 8]


def test_pods_come_after_racks() -> None:
    cluster = pods_of((2, 2), (2, 2))
    assert order_of(cluster) == (0, 4, 2, 6, 1, 5, 3, 7)
    found = traffic_of(cluster, "halving_doubling")
    np.testing.assert_allclose(found.rack_out[:2], found.rack_out[0])
    assert found.rack_out[0] < found.rack_out[2:].max() * 1.01


def test_a_rank_too_many_folds_onto_a_near_one() -> None:
    assert order_of(cluster_of([[1, 1, 1], [1, 1]])) == (0, 3, 2, 4, 1)
    assert order_of(cluster_of([[1, 1], [1, 1], [1, 1]])) == (0, 4, 2, 3, 1, 5)


@given(st.integers(1, 3), st.integers(0, 3))
def test_racks_of_powers_of_two_send_the_least_between_them(log_racks: int, log_hosts: int) -> None:
    num_racks = 2**log_racks
    found = traffic_of(cluster_of([[1] * 2**log_hosts] * num_racks), "halving_doubling")
    least = traffic_of(cluster_of([[1] * 2**log_hosts] * num_racks))
    np.testing.assert_allclose(found.rack_out, least.rack_out, rtol=1e-4)
    np.testing.assert_allclose(found.rack_in, least.rack_in, rtol=1e-4)


@given(sizes_of_racks, st.integers(0, 2))
def test_no_link_between_racks_carries_more_than_in_the_order_of_ranks(sizes: list[list[int]], loose: int) -> None:
    cluster = cluster_of(sizes, loose=loose)
    if cluster.num_workers < 3:
        return
    assert _between(cluster, order_of(cluster)) <= _between(cluster, tuple(range(cluster.num_workers))) * (1 + 1e-9)


def _between(cluster: ClusterSpec, group: tuple[int, ...]) -> float:
    return float(_traffic(cluster, group).rack_out.sum())


def _traffic(cluster: ClusterSpec, group: tuple[int, ...]) -> Traffic:
    transfer = plain_transfer("all_reduce", "halving_doubling", group, 2**6 * 3**3 * 5 * 7)
    closed, expanded = transfer_traffic(transfer, cluster), expanded_traffic(transfer, cluster)
    np.testing.assert_array_equal(closed.links, expanded.links)
    return closed


@pytest.mark.parametrize(
    "synchroniser",
    [
        AllReduce(topology="halving_doubling"),
        AllReduce(topology="halving_doubling", hierarchical=True),
        Sharded(topology="halving_doubling"),
        Periodic(every=2, topology="halving_doubling"),
    ],
    ids=str,
)
def test_every_halving_doubling_of_a_plan_is_nearest_first(synchroniser: Synchroniser) -> None:
    cluster = cluster_of([[2, 2], [2, 2]])
    plan = plan_over(cluster, synchroniser)
    halving = [one for one in plan.operations if isinstance(one, Transfer) and one.algorithm == "halving_doubling"]
    assert halving
    for transfer in halving:
        assert transfer.groups == tuple(nearest_first(tuple(sorted(group)), cluster) for group in transfer.groups)
        assert any(list(group) != sorted(group) for group in transfer.groups)


def test_shards_are_those_that_the_transfers_leave() -> None:
    plan = plan_over(cluster_of([[2, 2], [2, 2]]), Sharded(topology="halving_doubling"), clip_norm=CLIP)
    groups = {one.groups for one in plan.operations if not isinstance(one, Local) or one.sharded}
    groups -= {(tuple(range(8)),)}
    assert groups == {((0, 4, 2, 6, 1, 5, 3, 7),)}


def test_plans_that_pair_nearest_first_have_ids_of_their_own() -> None:
    """What an older version measured for such a strategy was another plan."""
    cluster = cluster_of([[1, 1, 1], [1, 1]])
    plan = plan_over(cluster, AllReduce(topology="halving_doubling"))
    operations = tuple(
        one._replace(groups=tuple(tuple(sorted(group)) for group in one.groups)) for one in plan.operations
    )
    in_rank_order = replace(plan, operations=operations)
    assert plan_id(in_rank_order, cluster) != plan_id(plan, cluster)
    before, now = (plan_traffic(one, cluster).rack_out.max() for one in (in_rank_order, plan))
    assert before > 2 * now
