"""A host that is served worse is named, fair hosts never are, and shards are dealt by rate."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.errors import InputError
from autosync.inputs.fairness import deal_shards, served_worse, served_worse_both_ways


def _measured(seed: int, factors: list[float], noise: float, count: int = 20) -> dict[str, list[float]]:
    chance = np.random.default_rng(seed)
    return {
        f"host{number}": (1e8 * factor * np.exp(noise * chance.normal(size=count))).tolist()
        for number, factor in enumerate(factors)
    }


@pytest.mark.parametrize("num_hosts", [2, 4, 8])
def test_a_planted_host_is_named_and_fair_hosts_are_not(num_hosts: int) -> None:
    for seed in range(20):
        assert served_worse(_measured(seed, [1.0] * num_hosts, 0.2)) == ()
        planted = seed % num_hosts
        factors = [0.5 if number == planted else 1.0 for number in range(num_hosts)]
        (found,) = served_worse(_measured(seed, factors, 0.2))
        assert found.host == f"host{planted}"
        assert 0.3 < found.share <= found.at_most < 0.9


@given(st.integers(0, 10**6), st.integers(2, 6), st.floats(0.01, 0.6), st.floats(0.95, 1.05))
def test_no_false_alarm_under_noise(seed: int, num_hosts: int, noise: float, factor: float) -> None:
    assert served_worse(_measured(seed, [factor] + [1.0] * (num_hosts - 1), noise)) == ()


def test_a_small_share_is_fair_if_it_was_agreed() -> None:
    rates = _measured(1, [0.25, 1.0, 1.0], 0.1)
    assert [one.host for one in served_worse(rates)] == ["host0"]
    assert served_worse(rates, {"host0": 1, "host1": 4, "host2": 4}) == ()


def test_a_host_with_another_number_of_ranks_is_named_only_if_it_is_served_worse_both_ways() -> None:
    # Storage that limits each request gives one rank half of what it gives two.
    rates = _measured(1, [0.5, 1.0, 1.0], 0.1)
    assert [one.host for one in served_worse(rates)] == ["host0"]
    assert served_worse_both_ways(rates, {"host0": 1, "host1": 2, "host2": 2}) == ()
    # Storage that limits each host gives each of two ranks half.
    assert served_worse_both_ways(_measured(1, [1.0] * 3, 0.1), {"host0": 2, "host1": 1, "host2": 1}) == ()
    (found,) = served_worse_both_ways(_measured(1, [0.2, 1.0, 1.0], 0.1), {"host0": 1, "host1": 2, "host2": 2})
    assert found.host == "host0"
    assert 0.3 < found.share < 0.5
    (equal,) = served_worse_both_ways(rates, {"host0": 2, "host1": 2, "host2": 2})
    assert equal.share == pytest.approx(served_worse(rates)[0].share)


def test_too_few_measurements_are_refused() -> None:
    with pytest.raises(InputError, match="5 finite rates"):
        served_worse({"a": [1.0] * 4, "b": [1.0] * 5})


@given(
    st.lists(st.integers(0, 10**9), max_size=40),
    st.dictionaries(st.sampled_from("abcdef"), st.floats(1e3, 1e9), min_size=1),
)
def test_each_shard_is_dealt_once_and_the_end_is_near_the_ideal(sizes: list[int], rates: dict[str, float]) -> None:
    dealt = deal_shards(sizes, rates)
    assert sorted(shard for shards in dealt.values() for shard in shards) == list(range(len(sizes)))
    end = max(sum(sizes[shard] for shard in shards) / rates[host] for host, shards in dealt.items())
    # No order can beat this: all rates together, and the largest shard on the fastest host.
    ideal = max(sum(sizes) / sum(rates.values()), max(sizes, default=0) / max(rates.values()))
    assert end <= 2 * ideal + 1e-9


def test_equal_shards_go_by_rate() -> None:
    dealt = deal_shards([100] * 12, {"slow": 1.0, "fast": 3.0})
    assert {host: len(shards) for host, shards in dealt.items()} == {"slow": 3, "fast": 9}


def test_rates_must_be_usable() -> None:
    with pytest.raises(InputError, match="a finite rate above 0"):
        deal_shards([1], {"a": math.inf})
