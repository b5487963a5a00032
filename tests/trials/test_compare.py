"""Who is said to be faster: those that are, and hardly anybody else, whatever the noise."""

import random
from collections import Counter
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.errors import OperationError
from autosync.testing.trials import FakeService, FakeSteps, Load
from autosync.trials.compare import DEFAULT_DESIGN, ROUNDS_TO_STOP, Design, compare, draw_order, plan_rounds
from autosync.trials.comparison import Comparison, Ratio, confidence_of_each
from autosync.trials.contestant import Contestant
from autosync.trials.statistics import Interval, blocked_interval, min_rounds, round_ratio

# Differences however small, to see what the statistics alone do.
STRICT = Design(least_difference=0.0)


def _compared(service: FakeService, *names: str, design: Design = DEFAULT_DESIGN, seed: int = 0) -> Comparison:
    return compare(service, [Contestant(name=name) for name in names], design=design, seed=seed)


def _same(load: Load, *, seed: int, correlation: float = 0.0, noise: float = 0.02, num: int = 2) -> FakeService:
    steps = {name: FakeSteps(seconds=0.1, noise=noise) for name in "abcdefgh"[:num]}
    return FakeService(steps, seed=seed, correlation=correlation, load=load)


LOADS: dict[str, Load] = {
    "quiet": lambda now: 1.0,
    "drifting": lambda now: 1 + now / 100,
    "waves": lambda now: 1 + 0.1 * float(np.sin(now)),
    "jumps": lambda now: 1.3 if now > 8 else 1.0,
    "bursts": lambda now: 1.5 if now % 7 < 1 else 1.0,
}


@pytest.mark.parametrize("correlation", [pytest.param(0.0, marks=pytest.mark.slow), 0.9])
@pytest.mark.parametrize("load", LOADS)
def test_a_contestant_is_hardly_ever_found_to_differ_from_itself(load: str, correlation: float) -> None:
    """100 comparisons of each kind, at the full 95 %: 5 are to be expected, more than 10 in one of 90 such tests."""
    found = 0
    for seed in range(100):
        service = _same(LOADS[load], seed=seed, correlation=correlation)
        comparison = _compared(service, "a", "b", design=STRICT, seed=seed)
        found += comparison.ratios[0].verdict != "no difference found"
    assert found <= 10


def test_among_equals_nobody_is_the_best() -> None:
    named = [0, 0]
    for seed in range(60):
        comparison = _compared(_same(LOADS["waves"], seed=seed, num=4), *"abcd", design=STRICT, seed=seed)
        named[0] += comparison.best is not None
        named[1] += bool(comparison.beats_first)
    assert named[0] <= 4
    assert named[1] <= 6


@pytest.mark.parametrize("load", LOADS)
def test_a_difference_is_found(load: str) -> None:
    steps = {"slow": FakeSteps(seconds=0.11, noise=0.02), "fast": FakeSteps(seconds=0.1, noise=0.02)}
    found = covered = 0
    for seed in range(20):
        service = FakeService(steps, seed=seed, correlation=0.5, load=LOADS[load])
        comparison = _compared(service, "slow", "fast", seed=seed)
        (ratio,) = comparison.ratios
        assert ratio.verdict != "slower"
        found += ratio.verdict == "faster"
        assert comparison.best == ("fast" if ratio.verdict == "faster" else None)
        assert comparison.beats_first == (("fast",) if ratio.verdict == "faster" else ())
        covered += ratio.speedup.low <= 1.1 <= ratio.speedup.high
    # A burst is half as long as a round and hits one contestant's block or the other's: it hides a difference now and
    # then, and turns none round.
    assert found >= (15 if load == "bursts" else 20)
    assert covered >= 16


def test_a_difference_too_small_to_speak_of_is_none() -> None:
    steps = {"slow": FakeSteps(seconds=0.1003), "fast": FakeSteps(seconds=0.1)}
    assert _compared(FakeService(steps), "slow", "fast").ratios[0].verdict == "no difference found"
    assert _compared(FakeService(steps), "slow", "fast", design=STRICT).ratios[0].verdict == "faster"


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (1.10, 1.14, "a is 1.120 times as fast as b (1.100 to 1.140)"),
        (0.80, 0.90, "a is 0.850 times as fast as b (0.800 to 0.900)"),
        (0.99, 1.01, "no difference found between a and b (0.990 to 1.010)"),
        (1.004, 1.02, "no difference found between a and b (1.004 to 1.020)"),
    ],
)
def test_the_verdict_in_words(low: float, high: float, words: str) -> None:
    speedup = Interval(value=(low + high) / 2, low=low, high=high)
    assert str(Ratio(name="a", other="b", speedup=speedup, least_difference=0.005)) == words


def test_what_a_comparison_says_of_each() -> None:
    steps = {
        "a": FakeSteps(seconds=0.24, noise=0.01, bytes_per_step=1000, peak_memory_bytes=5, cpu_share=0.7),
        "b": FakeSteps(seconds=0.1, noise=0.01, bytes_per_step=2000, peak_memory_bytes=7),
    }
    service = FakeService(steps)
    contestants = [Contestant(name="a"), Contestant(name="b")]
    comparison = compare(service, contestants, compute_seconds={"a": 0.08, "b": 0.04})
    first, second = comparison.measurements["a"], comparison.measurements["b"]
    assert (comparison.num_rounds, comparison.steps_per_round) == (12, {"a": 2, "b": 5})
    assert comparison.rounds_in_words == "12 rounds of 2 to 5 steps of each, in turn"
    assert (first.num_steps, second.num_steps) == (24, 60)
    assert first.low_seconds <= first.median_seconds <= first.high_seconds
    assert first.exposed_seconds == pytest.approx(0.16, rel=0.05)
    assert second.exposed_seconds == pytest.approx(0.06, rel=0.05)
    assert (first.bytes_sent, second.bytes_sent) == ((1000, 1000), (2000, 2000))
    assert (first.peak_memory_bytes, second.peak_memory_bytes) == ((5, 5), (7, 7))
    assert (first.flags, second.flags) == (("busy_cpu",), ())
    assert first.num_warmup_steps == 12
    assert comparison.ratios[0].speedup.value == pytest.approx(2.4, rel=0.02)
    assert service.prepared == set()


def test_each_round_has_an_order_of_its_own_drawn_by_lot() -> None:
    lots = random.Random(0)
    orders = Counter(tuple(draw_order(["a", "b", "c"], lots)) for _ in range(600))
    assert set(orders) == set(permutations("abc"))
    assert all(60 < count < 140 for count in orders.values())


def test_the_seed_draws_the_same_orders_again() -> None:
    def calls(seed: int) -> list[tuple[str, str, int]]:
        service = _same(LOADS["quiet"], seed=0)
        _compared(service, "a", "b", seed=seed)
        return service.calls

    assert calls(1) == calls(1)
    assert calls(1) != calls(2)


def test_what_one_leaves_under_way_is_not_the_next_ones_burden() -> None:
    leaving, other = FakeSteps(seconds=0.1, leaves_seconds=0.15), FakeSteps(seconds=0.1)
    comparison = _compared(FakeService({"leaving": leaving, "other": other}), "leaving", "other")
    assert comparison.measurements["other"].median_seconds == pytest.approx(0.1)
    assert comparison.ratios[0].verdict == "no difference found"


def test_one_that_fails_is_left_out_and_the_others_go_on() -> None:
    steps = {
        "a": FakeSteps(seconds=0.2),
        "b": FakeSteps(seconds=0.1, fails_at=40),
        "c": FakeSteps(seconds=0.1),
        "d": FakeSteps(seconds=0.1, fails_at=0),
    }
    service = FakeService(steps)
    comparison = _compared(service, "a", "b", "c", "d")
    assert list(comparison.measurements) == ["a", "c"]
    assert {name: one.message for name, one in comparison.failures.items()} == {
        "b": "rank 0: b fails here",
        "d": "rank 0: d fails here",
    }
    assert comparison.steps_per_round == {"a": 2, "c": 5}
    for name, num_steps in comparison.steps_per_round.items():
        assert comparison.measurements[name].num_steps == comparison.num_rounds * num_steps
    assert comparison.best == "c"
    assert service.prepared == set()


def test_one_that_is_far_behind_is_stopped() -> None:
    seconds = {"a": 0.3, "b": 0.1, "c": 0.12, "d": 0.105}
    service = FakeService({name: FakeSteps(seconds=one, noise=0.005) for name, one in seconds.items()})
    comparison = compare(service, [Contestant(name=name) for name in seconds], may_stop="bcd")
    assert list(comparison.measurements) == list("abcd")
    assert list(comparison.blocks) == list("abd")
    stopped = comparison.measurements["c"]
    assert stopped.flags == ("stopped_early",)
    assert stopped.num_steps == ROUNDS_TO_STOP * 4
    assert stopped.median_seconds == pytest.approx(0.12, rel=0.01)
    assert comparison.num_rounds == 12
    assert [ratio.name for ratio in comparison.ratios] == ["b", "d"]
    # It counts among those that were compared, so the others' intervals are as wide as if it had gone on.
    widest = round_ratio(comparison.blocks["a"], comparison.blocks["b"], confidence=confidence_of_each(3))
    assert comparison.between("b", "a").speedup == widest
    assert service.prepared == set()


@pytest.mark.parametrize("load", LOADS)
def test_equals_are_hardly_ever_stopped(load: str) -> None:
    """Their steps are long, so that each block meets another part of a load. 120 of them could be stopped."""
    names, stopped = "abcdef", 0
    for seed in range(30):
        service = FakeService({name: FakeSteps(seconds=0.4, noise=0.03) for name in names}, seed=seed, load=LOADS[load])
        contestants, design = [Contestant(name=name) for name in names], Design(num_steps=36, budget_seconds=60.0)
        comparison = compare(service, contestants, design=design, seed=seed, may_stop=names[2:])
        stopped += len(names) - len(comparison.blocks)
    assert stopped <= 4


def test_with_fewer_than_two_left_there_is_nothing_to_compare() -> None:
    service = FakeService({"a": FakeSteps(seconds=1.0, fails_at=1), "b": FakeSteps(seconds=1.0)})
    with pytest.raises(OperationError, match=r"fewer than two .* \(a: raised: rank 0: a fails here\)"):
        _compared(service, "a", "b")
    assert service.prepared == set()


@pytest.mark.parametrize(
    ("step_seconds", "design", "num_rounds", "steps"),
    [
        ([0.1, 0.1], Design(), 12, (5, 5)),
        ([0.1, 0.1], Design(num_steps=240), 12, (20, 20)),
        ([0.1, 0.1], Design(num_steps=8), 8, (1, 1)),
        ([0.1, 0.1], Design(num_steps=1), 6, (1, 1)),
        ([1.0, 1.0], Design(budget_seconds=100), 12, (3, 3)),
        ([1.0, 1.0], Design(budget_seconds=40), 10, (1, 1)),
        ([1.0, 1.0], Design(budget_seconds=1), 6, (1, 1)),
        ([1.0] * 5, Design(budget_seconds=1), 8, (1,) * 5),
        ([0.6, 0.13, 0.1], Design(), 12, (2, 4, 5)),
        ([0.6, 0.13, 0.1], Design(num_steps=240), 12, (3, 15, 20)),
        ([0.6, 0.13, 0.1], Design(num_steps=12), 12, (1, 1, 1)),
    ],
)
def test_how_much_the_budget_has_time_for(
    step_seconds: list[float], design: Design, num_rounds: int, steps: tuple[int, ...]
) -> None:
    plan = plan_rounds(step_seconds, design)
    assert (plan.num_rounds, plan.steps) == (num_rounds, steps)


@given(
    step_seconds=st.lists(st.floats(0.001, 2.0), min_size=2, max_size=8),
    num_steps=st.integers(1, 240),
    budget_seconds=st.floats(1.0, 300.0),
    alike=st.booleans(),
)
def test_rounds_for_any_contestants(
    step_seconds: list[float], num_steps: int, budget_seconds: float, alike: bool
) -> None:
    design = Design(num_steps=num_steps, budget_seconds=budget_seconds)
    plan = plan_rounds(step_seconds, design, alike=alike)
    assert plan.num_rounds >= min_rounds(confidence_of_each(len(step_seconds) - 1))
    most = max(plan.steps)
    assert 1 <= most <= num_steps
    assert min(plan.steps) >= (most if alike else min(most, 2))
    # The fastest has the most, and nobody's block takes longer than it must.
    assert plan.steps[step_seconds.index(min(step_seconds))] == most
    if most > 1:
        assert plan.seconds(step_seconds) <= budget_seconds
    for seconds, count in zip(step_seconds, plan.steps, strict=True):
        assert alike or count <= 2 or count <= most * min(step_seconds) / seconds + 0.5


@pytest.mark.parametrize(
    "changes", [{"num_steps": 0}, {"num_rounds": 0}, {"budget_seconds": 0}, {"least_difference": 1}]
)
def test_a_design_that_cannot_be(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"or more|above 0"):
        replace(Design(), **changes)  # type: ignore[arg-type]


def test_fewer_rounds_than_an_interval_needs_say_nothing() -> None:
    assert [min_rounds(confidence) for confidence in (0.95, 0.975, 0.99)] == [6, 7, 8]
    fast, slow = [[1.0]] * 6, [[2.0]] * 6
    assert round_ratio(slow[:5], fast[:5]) == Interval(value=2.0, low=0.0, high=float("inf"))
    assert round_ratio(slow, fast) == Interval(value=2.0, low=2.0, high=2.0)


def test_the_interval_inverts_the_signed_rank_test() -> None:
    """The critical values are those of the published tables: 6, 8, 10, 12 rounds have 0, 3, 8, 13."""
    for num_rounds, critical in ((6, 0), (8, 3), (10, 8), (12, 13)):
        ratios = np.exp(np.sort(np.random.default_rng(num_rounds).normal(size=num_rounds)))
        interval = round_ratio([[ratio] for ratio in ratios], [[1.0]] * num_rounds)
        logs = np.log(ratios)
        averages = np.sort([(a + b) / 2 for i, a in enumerate(logs) for b in logs[i:]])
        assert np.log(interval.low) == pytest.approx(averages[critical])
        assert np.log(interval.high) == pytest.approx(averages[-1 - critical])


ROUNDS = st.lists(st.lists(st.floats(0.1, 10), min_size=3, max_size=3), min_size=6, max_size=14)


@given(ROUNDS, st.floats(0.1, 10), st.lists(st.floats(0.1, 10), min_size=14, max_size=14))
def test_what_slows_a_whole_round_changes_nothing(rounds: list[list[float]], factor: float, load: list[float]) -> None:
    first = [[factor * one * slow for one in block] for block, slow in zip(rounds, load, strict=False)]
    second = [[one * slow for one in block] for block, slow in zip(rounds, load, strict=False)]
    interval = round_ratio(first, second)
    assert interval.low == pytest.approx(factor)
    assert interval.high == pytest.approx(factor)


@given(ROUNDS, ROUNDS)
def test_turned_round_it_is_the_inverse(first: list[list[float]], second: list[list[float]]) -> None:
    count = min(len(first), len(second))
    there, back = round_ratio(first[:count], second[:count]), round_ratio(second[:count], first[:count])
    assert there.value == pytest.approx(1 / back.value)
    assert there.low == pytest.approx(1 / back.high)
    assert there.low <= there.value <= there.high


@given(ROUNDS)
def test_one_bad_round_of_many_decides_nothing(rounds: list[list[float]]) -> None:
    same = round_ratio(rounds, rounds)
    spoilt = [[100 * one for one in rounds[0]], *rounds[1:]]
    assert (same.low, same.high) == (1, 1)
    interval = round_ratio(spoilt, rounds)
    assert interval.low == 1


@given(ROUNDS)
def test_a_median_with_rounds_as_units(rounds: list[list[float]]) -> None:
    interval = blocked_interval(rounds)
    assert interval.value == np.median(rounds)
    assert interval.low <= interval.value <= interval.high
    assert interval == blocked_interval(rounds)
