"""The knee: the number of nodes beyond which a further one adds little throughput."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.scaling.knee import gain_of_another, knee_of, throughput_at

curves = st.dictionaries(st.integers(1, 64), st.floats(1e-2, 1e3), min_size=2, max_size=8)


def test_perfect_scaling_has_no_knee_below_twenty() -> None:
    found = knee_of({number: float(number) for number in (1, 2, 4, 8, 16)})
    assert found is not None
    assert found.num_nodes is None
    assert str(found) == "up to 16 nodes, each further node brings 5% or more"


def test_a_further_node_of_twenty_brings_a_twentieth() -> None:
    found = knee_of({1: 1.0, 64: 64.0})
    assert found is not None
    assert found.num_nodes == 21
    assert found.is_between


def test_steps_that_grow_with_the_nodes_have_the_knee_at_one() -> None:
    found = knee_of(dict.fromkeys(range(1, 9), 10.0))
    assert found is not None
    assert (found.num_nodes, found.is_between) == (1, False)
    assert str(found) == "beyond 1 node a further node brings nothing"


def test_a_node_with_more_devices_adds_more() -> None:
    """The third node has eight devices, each of the others one; no rank waits."""
    assert gain_of_another({1: 1.0, 2: 2.0, 3: 10.0}, 2) == pytest.approx(4.0)


def test_a_single_size_has_no_curve() -> None:
    assert knee_of({4: 0.1}) is None


@given(curves, st.floats(0.0, 0.2))
def test_from_the_knee_on_no_node_brings_much(curve: dict[int, float], little: float) -> None:
    found = knee_of(curve, little)
    assert found is not None
    first = max(curve) if found.num_nodes is None else found.num_nodes
    assert min(curve) <= first <= max(curve)
    assert all(gain_of_another(curve, number) < little for number in range(first, max(curve)))
    if first > min(curve):
        assert gain_of_another(curve, first - 1) >= little


@given(curves, st.floats(0.0, 0.2), st.floats(0.0, 0.2))
def test_who_wants_more_stops_earlier(curve: dict[int, float], one: float, other: float) -> None:
    less, more = sorted((one, other))
    knees = [found.num_nodes or math.inf for found in (knee_of(curve, less), knee_of(curve, more)) if found]
    assert knees[1] <= knees[0]


@given(curves)
def test_throughputs_between_sizes_lie_between_theirs(curve: dict[int, float]) -> None:
    for number in range(min(curve), max(curve) + 1):
        below = max(one for one in curve if one <= number)
        above = min(one for one in curve if one >= number)
        low, high = sorted((curve[below], curve[above]))
        assert low * (1 - 1e-9) <= throughput_at(curve, number) <= high * (1 + 1e-9)


@given(curves, st.floats(0.01, 100))
def test_the_knee_does_not_depend_on_the_unit_of_time(curve: dict[int, float], factor: float) -> None:
    scaled = {number: throughput * factor for number, throughput in curve.items()}
    for number in range(min(curve), max(curve)):
        assert gain_of_another(scaled, number) == pytest.approx(gain_of_another(curve, number), rel=1e-9, abs=1e-9)
