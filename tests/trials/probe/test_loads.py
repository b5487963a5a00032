"""Loads: halves that send to halves, so that every group of equal nodes sends out all together at least once."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.trials.probe.loads import TESTED, AloneRates, plan_screen, spread, stars_of, total_rate

MOST = 100


def equal(num_nodes: int) -> AloneRates:
    return AloneRates(out=(100.0,) * num_nodes, into=(100.0,) * num_nodes)


@pytest.mark.parametrize("num_nodes", [4, 6, 8])
def test_every_group_of_equal_nodes_sends_and_receives_as_one(num_nodes: int) -> None:
    loads = [load.ways for load in plan_screen(equal(num_nodes), MOST)]
    for size in range(2, num_nodes // 2 + 1):
        for group in map(set, itertools.combinations(range(num_nodes), size)):
            out = max(sum(s in group and d not in group for s, d in ways) for ways in loads)
            into = max(sum(d in group and s not in group for s, d in ways) for ways in loads)
            assert (out, into) == (size, size)


def test_a_group_that_is_faster_than_its_partners_gets_a_load_of_its_own() -> None:
    rates = (100.0, 100.0, 50.0, 50.0, 50.0, 50.0)
    alone = AloneRates(out=rates, into=rates)
    loads = [load.ways for load in plan_screen(alone, MOST)]
    asked = [total_rate(ways, alone) for ways in loads if {source for source, _ in ways} == {0, 1}]
    assert max(asked) >= TESTED * 200


def test_a_limit_on_the_number_of_loads_holds() -> None:
    for num_nodes in (4, 8, 20):
        assert len(plan_screen(equal(num_nodes), 5)) == 5


_RATES = st.lists(st.sampled_from([25.0, 50.0, 100.0]), min_size=4, max_size=9)


@given(_RATES, st.data())
def test_no_two_stars_share_a_node(rates: list[float], data: st.DataObject) -> None:
    alone = AloneRates(out=tuple(rates), into=tuple(reversed(rates)))
    size = data.draw(st.integers(1, len(rates) - 1))
    ways = spread(range(size), range(size, len(rates)), alone)
    stars = stars_of(ways, alone)
    assert sorted(way for star in stars for way in star.ways) == list(range(len(ways)))
    nodes = [{node for way in star.ways for node in ways[way]} for star in stars]
    assert sum(map(len, nodes)) == len(set().union(*nodes))
    assert all(source < size <= destination for source, destination in ways)
    assert {source for source, _ in ways} == set(range(size)) or len(rates) - size < size
