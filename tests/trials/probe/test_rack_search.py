"""Racks are found where nodes share a link, and only there: random networks on paper, with noise."""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.trials.probe.rack_search import RackSearch
from autosync.trials.probe.request import LoadSamples
from tests.helpers.paper_networks import MOST_LOADS, PaperNetwork, PaperRack

EQUAL = (100.0,) * 8


def groups(found: RackSearch) -> list[tuple[int, ...]]:
    return [uplink.group for uplink in found.uplinks]


def directions(found: RackSearch) -> list[tuple[float | None, float | None]]:
    """The rates of each shared uplink, out and in; None where nothing is shared."""
    return [
        (
            uplink.out.together.value if uplink.out else None,
            uplink.into.together.value if uplink.into else None,
        )
        for uplink in found.uplinks
    ]


def test_two_racks_are_found_with_their_rates() -> None:
    racks = [PaperRack(members=(1, 6), out=120, into=90), PaperRack(members=(0, 3, 5), out=200, into=150)]
    found = PaperNetwork(out=EQUAL, into=EQUAL, racks=racks).search()
    assert groups(found) == [(0, 3, 5), (1, 6)]
    (three, two) = directions(found)
    assert three == (pytest.approx(200, rel=0.03), pytest.approx(150, rel=0.03))
    assert two == (pytest.approx(120, rel=0.03), pytest.approx(90, rel=0.03))
    assert found.doubt is None


@pytest.mark.parametrize("is_out", [True, False])
def test_an_uplink_may_be_slow_in_one_direction_only(is_out: bool) -> None:
    rack = PaperRack(members=(2, 4), out=110) if is_out else PaperRack(members=(2, 4), into=110)
    found = PaperNetwork(out=EQUAL[:6], into=EQUAL[:6], racks=[rack]).search()
    assert groups(found) == [(2, 4)]
    ((out, into),) = directions(found)
    assert (out is not None, into is not None) == (is_out, not is_out)


def test_an_uplink_that_only_all_four_nodes_fill_is_found() -> None:
    racks = [PaperRack(members=(0, 2, 5, 7), out=320, into=320), PaperRack(members=(1, 3, 4, 6), out=320, into=320)]
    found = PaperNetwork(out=EQUAL, into=EQUAL, racks=racks).search()
    assert groups(found) == [(0, 2, 5, 7)]


def test_four_racks_of_two() -> None:
    racks = [PaperRack(members=(n, n + 4), out=120, into=120) for n in range(4)]
    assert groups(PaperNetwork(out=EQUAL, into=EQUAL, racks=racks).search()) == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_a_rack_of_one_node_is_a_slow_link_and_no_rack() -> None:
    found = PaperNetwork(out=EQUAL, into=EQUAL, racks=[PaperRack(members=(3,), out=40, into=40)]).search()
    assert not found.uplinks
    assert found.doubt is None


def test_processors_that_carry_too_little_are_the_reason_to_abstain() -> None:
    found = PaperNetwork(out=EQUAL, into=EQUAL, most=250).search()
    assert not found.uplinks
    assert found.doubt is not None
    assert "busy" in found.doubt


def test_a_limit_of_the_whole_network_is_no_rack() -> None:
    network = PaperNetwork(out=EQUAL, into=EQUAL, most=250)
    measure = network.measure
    network.measure = lambda load: _idle(measure(load))  # type: ignore[method-assign]
    found = network.search()
    assert not found.uplinks
    assert found.doubt is not None
    assert "no group explains it" in found.doubt


def _idle(row: LoadSamples) -> LoadSamples:
    return replace(row, cpu_share=0.2)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**9), st.integers(4, 8), st.sampled_from([150.0, 250.0, 350.0]))
def test_a_restless_machine_is_no_rack(seed: int, num_nodes: int, most: float) -> None:
    equal = EQUAL[:num_nodes]
    assert not PaperNetwork(out=equal, into=equal, most=most, restless=True, seed=seed).search().uplinks


def test_racks_of_a_large_cluster_are_found() -> None:
    rates = (100.0,) * 16
    scattered = [PaperRack(members=(1, 9, 12), out=150, into=150), PaperRack(members=(0, 3, 4, 7), out=200, into=240)]
    neighbours = [PaperRack(members=tuple(range(4 * n, 4 * n + 4)), out=200, into=200) for n in range(4)]
    halves = [PaperRack(members=tuple(range(8)), out=400, into=400)]
    for racks in (scattered, neighbours, halves):
        found = PaperNetwork(out=rates, into=rates, racks=racks).search()
        assert set(groups(found)) == expected(racks, 16)
    assert not PaperNetwork(out=rates, into=rates).search().uplinks


@pytest.mark.parametrize("num_nodes", [1, 2, 3])
def test_few_nodes_cannot_be_told_apart(num_nodes: int) -> None:
    network = PaperNetwork(out=EQUAL[:num_nodes], into=EQUAL[:num_nodes])
    assert not network.search().uplinks
    assert network.num_loads == 0


@pytest.mark.parametrize(("num_nodes", "most"), [(4, 12), (5, 40), (6, 40), (7, 70), (8, 70), (16, 80)])
def test_the_number_of_loads_without_racks(num_nodes: int, most: int) -> None:
    network = PaperNetwork(out=(100.0,) * num_nodes, into=(100.0,) * num_nodes)
    assert not network.search().uplinks
    assert network.num_loads <= most


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**9), st.integers(4, 8), st.booleans())
def test_no_rack_is_claimed_where_there_is_none(seed: int, num_nodes: int, is_disturbed: bool) -> None:
    order = random.Random(seed)
    out, into = ([order.choice((100.0, 100.0, 50.0, 25.0)) for _ in range(num_nodes)] for _ in range(2))
    network = PaperNetwork(out=out, into=into, noise=0.03, disturbed=0.6 if is_disturbed else 1.0, seed=seed)
    assert not network.search().uplinks


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**9), st.integers(4, 8))
def test_racks_of_equal_nodes_are_found(seed: int, num_nodes: int) -> None:
    order = random.Random(seed)
    racks = planted(order, (100.0,) * num_nodes)
    network = PaperNetwork(out=EQUAL[:num_nodes], into=EQUAL[:num_nodes], racks=racks, seed=seed)
    found = network.search()
    assert set(groups(found)) == expected(racks, num_nodes)
    assert network.num_loads <= 2 * MOST_LOADS + 8 * 6 * 5


def test_racks_of_unequal_nodes_are_found() -> None:
    """With few nodes of different rates, the opposite group can look like the rack: 1 % of the networks, by noise."""
    wrong = []
    for seed, num_nodes in itertools.product(range(40), range(5, 9)):
        order = random.Random(seed)
        rates = [order.choice((100.0, 100.0, 60.0)) for _ in range(num_nodes)]
        racks = planted(order, rates, num_racks=1)
        network = PaperNetwork(out=rates, into=rates, racks=racks, seed=seed)
        if set(groups(network.search())) != expected(racks, num_nodes):
            wrong.append((seed, num_nodes))
    assert len(wrong) <= 2, wrong


def planted(order: random.Random, rates: Sequence[float], num_racks: int | None = None) -> list[PaperRack]:
    """One or two racks of two to four nodes with uplinks that are clearly too slow, in one direction or both."""
    while True:
        racks = list(_drawn(order, rates, num_racks or order.choice((1, 2))))
        if all(_is_noticed(rack, [other for other in racks if other != rack], rates) for rack in racks):
            return racks


def _drawn(order: random.Random, rates: Sequence[float], num_racks: int) -> Iterator[PaperRack]:
    nodes = order.sample(range(len(rates)), len(rates))
    for _ in range(num_racks):
        size = order.choice([size for size in (2, 3, 4) if size <= len(rates) // 2])
        if size >= len(nodes):
            return
        members, nodes = tuple(sorted(nodes[:size])), nodes[size:]
        inside, outside = (sum(r for n, r in enumerate(rates) if (n in members) == within) for within in (True, False))
        out, into = (order.uniform(0.3, 0.75) * min(inside, outside) for _ in range(2))
        free = order.choice(("none", "none", "out", "in"))
        yield PaperRack(members=members, out=1e9 if free == "out" else out, into=1e9 if free == "in" else into)


def _is_noticed(rack: PaperRack, others: Sequence[PaperRack], rates: Sequence[float]) -> bool:
    """Whether the other racks' uplinks leave enough traffic to fill this rack's uplink clearly."""
    inside = sum(rates[node] for node in rack.members)
    racked = {node for other in [rack, *others] for node in other.members}
    loose = sum(rate for node, rate in enumerate(rates) if node not in racked)
    received = loose + sum(min(other.into, sum(rates[n] for n in other.members)) for other in others)
    sent = loose + sum(min(other.out, sum(rates[n] for n in other.members)) for other in others)
    is_out, is_in = rack.out < 0.78 * min(inside, received), rack.into < 0.78 * min(inside, sent)
    return (is_out or rack.out == 1e9) and (is_in or rack.into == 1e9)


def expected(racks: Sequence[PaperRack], num_nodes: int) -> set[tuple[int, ...]]:
    """The groups by which racks are known: by their nodes; a single rack of half of the nodes by the half of node 0."""
    if len(racks) > 1:
        return {rack.members for rack in racks}
    others = [tuple(node for node in range(num_nodes) if node not in rack.members) for rack in racks]
    return {
        min(rack.members, other, key=lambda side: (len(side), side)) for rack, other in zip(racks, others, strict=True)
    }
