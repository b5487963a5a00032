"""How long transfers take alone: rings by their slowest link, as they are when they are played."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.plan.types import Collective
from autosync.simulators.shared import uncontended
from autosync.simulators.shared.uncontended import MemberPlace, seconds_alone

RATES = (1e6, 3e6, 1e7)


def places_of(rng: random.Random, ranks: list[int]) -> tuple[MemberPlace, ...]:
    nodes = [(rng.choice(RATES), rng.choice(RATES), rng.choice((1e6, 1e8))) for _ in ranks]
    return tuple(MemberPlace(node, *nodes[node]) for node, count in enumerate(ranks) for _ in range(count))


@given(
    seed=st.integers(0, 2**32),
    ranks=st.lists(st.integers(1, 3), min_size=1, max_size=6),
    collective=st.sampled_from(("all_reduce", "reduce_scatter", "all_gather", "all_gather_v")),
    shuffled=st.booleans(),
)
def test_a_ring_takes_what_it_takes_played(seed: int, ranks: list[int], collective: Collective, shuffled: bool) -> None:
    rng = random.Random(seed)
    places = places_of(rng, ranks)
    if shuffled:
        places = tuple(rng.sample(places, len(places)))
    played = uncontended._played(collective, "ring", places, math.inf)
    assert seconds_alone(collective, "ring", places) == pytest.approx(played, rel=1e-9, abs=0)


def star_of(root: MemberPlace, *others: MemberPlace) -> dict[Collective, float]:
    return {one: seconds_alone(one, "star", (root, *others)) for one in ("reduce", "gather_v", "broadcast")}


def test_in_a_star_the_interface_decides_that_is_busy_for_longest() -> None:
    root = MemberPlace(0, 4.0, 8.0, 1.0)
    few_slow = [MemberPlace(node, 1.0, 0.5, 1.0) for node in (1, 2)]
    # Two receive from the root at half the rate, and need not wait for one another.
    assert star_of(root, *few_slow) == {"reduce": 1.0, "gather_v": 1.0, "broadcast": 2.0}
    many = [MemberPlace(node, 1.0, 1.0, 1.0) for node in range(1, 25)]
    assert star_of(root, *many) == {"reduce": 3.0, "gather_v": 3.0, "broadcast": 6.0}
    # Three on one node share its interface; what is on the root's own node passes none.
    assert star_of(root, *[few_slow[0]] * 3) == {"reduce": 3.0, "gather_v": 3.0, "broadcast": 6.0}
    assert star_of(root, MemberPlace(0, 1e-3, 1e-3, 0.25)) == dict.fromkeys(("reduce", "gather_v", "broadcast"), 4.0)


def test_thousands_in_a_ring_are_not_played(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> float:
        raise AssertionError("a million moves")

    monkeypatch.setattr(uncontended, "expand", refuse)
    places = tuple(MemberPlace(node, 1e6, 2e6 if node else 5e5, 1e8) for node in range(4096))
    assert seconds_alone("all_reduce", "native", places) == pytest.approx(2 * 4095 / 4096 / 5e5)
