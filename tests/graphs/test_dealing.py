"""Dealing: every example goes to one rank, the mean stays right, and the slowest rank is no slower than by count."""

import itertools
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.errors import InputError
from autosync.graphs.dealing import deal, deal_by_count, lost_share

_COSTS = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=25)


@settings(max_examples=40)
@given(costs=_COSTS, data=st.data())
def test_every_example_has_one_rank_and_the_mean_is_right(costs: list[float], data: st.DataObject) -> None:
    num_ranks = data.draw(st.integers(1, len(costs)))
    depths = data.draw(st.lists(st.integers(1, 30), min_size=len(costs), max_size=len(costs)))
    level_cost = data.draw(st.sampled_from([0.0, 0.5, 50.0]))
    losses = [math.sin(cost) for cost in costs]
    for dealt in (
        deal(costs, num_ranks, depths=depths, level_cost=level_cost),
        deal_by_count(costs, num_ranks, depths=depths, level_cost=level_cost),
    ):
        assert sorted(itertools.chain(*dealt.examples)) == list(range(len(costs)))
        assert all(dealt.examples)
        mean = math.fsum(losses) / len(losses)
        sums = [math.fsum(losses[one] for one in own) for own in dealt.examples]
        assert math.isclose(math.fsum(sums) * dealt.example_weight / num_ranks, mean, abs_tol=1e-9)
        means = [total / len(own) for total, own in zip(sums, dealt.examples, strict=True)]
        weighted = math.fsum(one * weight for one, weight in zip(means, dealt.rank_weights, strict=True))
        assert math.isclose(weighted / num_ranks, mean, abs_tol=1e-9)
        assert 0 <= dealt.lost_share < 1


@settings(max_examples=30)
@given(costs=st.lists(st.integers(1, 50), min_size=1, max_size=7), data=st.data())
def test_the_slowest_rank_is_near_the_best_possible(costs: list[int], data: st.DataObject) -> None:
    num_ranks = data.draw(st.integers(1, min(3, len(costs))))
    best = min(
        max(sum(cost for cost, rank in zip(costs, ranks, strict=True) if rank == one) for one in range(num_ranks))
        for ranks in itertools.product(range(num_ranks), repeat=len(costs))
    )
    found = max(deal(costs, num_ranks).rank_costs)
    assert best <= found <= best * (4 / 3 - 1 / (3 * num_ranks)) + 1e-9


@pytest.mark.parametrize("seed", range(20))
def test_little_is_lost_with_a_heavy_tail(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [5 * chance.paretovariate(1.1) for _ in range(64)]
    for _ in sizes:
        # No single example exceeds a rank's fair share.
        fair = sum(sizes) / 4
        sizes = [min(size, fair) for size in sizes]
    assert deal(sizes, 4).lost_share <= 0.05
    assert deal(sizes, 4).lost_share <= deal_by_count(sizes, 4).lost_share


def test_deep_examples_share_a_rank_if_levels_cost_much() -> None:
    costs, depths = [1.0] * 8, [50, 50, 1, 1, 1, 1, 1, 1]
    dealt = deal(costs, 2, depths=depths, level_cost=1.0)
    assert any({0, 1} <= set(own) for own in dealt.examples)


def test_gradients_of_dealt_ranks_average_to_the_gradient_of_the_mean() -> None:
    torch.manual_seed(0)
    weight = torch.randn(3, dtype=torch.float64, requires_grad=True)
    rows = torch.randn(7, 3, dtype=torch.float64)
    (whole,) = torch.autograd.grad((rows @ weight).tanh().mean(), weight)
    dealt = deal([5.0, 1, 1, 1, 1, 1, 2], 2)
    averaged = torch.zeros(3, dtype=torch.float64)
    for own in dealt.examples:
        loss = (rows[list(own)] @ weight).tanh().sum() * dealt.example_weight
        averaged += torch.autograd.grad(loss, weight)[0] / dealt.num_ranks
    assert torch.allclose(averaged, whole)


def test_the_lost_share_is_what_ranks_wait() -> None:
    assert lost_share([1.0, 1.0]) == 0
    assert lost_share([4.0, 2.0]) == 0.25
    assert lost_share([0.0, 0.0]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([1.0], 2), "1 examples for 2 ranks"),
        (([1.0], 0), "at least one rank"),
        (([1.0, 0.0], 1), "costs[1]: cost 0.0 (a positive number)"),
        (([1.0, math.nan], 1), "cost nan"),
    ],
)
def test_what_cannot_be_dealt_is_refused(arguments: tuple[list[float], int], words: str) -> None:
    with pytest.raises(InputError) as caught:
        deal(*arguments)
    assert words in str(caught.value)


def test_depths_are_checked() -> None:
    with pytest.raises(InputError, match="one for each example"):
        deal([1.0, 2.0], 1, depths=[1])
    with pytest.raises(InputError, match="needs depths"):
        deal([1.0, 2.0], 1, level_cost=1.0)
    with pytest.raises(InputError, match="not below 0"):
        deal([1.0, 2.0], 1, depths=[1, 1], level_cost=-1.0)
