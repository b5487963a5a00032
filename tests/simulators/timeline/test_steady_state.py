"""Step times in the long run, for plans that run ahead of their transfers and plans that rarely have any."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.simulators.timeline.steady_state import (
    LONGEST_LAG,
    NUM_ITERATIONS,
    RAREST,
    num_iterations,
    num_until_all,
    step_seconds,
    within_reach,
)
from autosync.specs.model_file import load_model
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Message, Overlap, Strategy
from autosync.strategy.synchronisers.periodic import Periodic
from autosync.testing.simulators import two_layers
from tests.helpers.example_costs import GLOO
from tests.helpers.example_plans import cluster_of

MODEL = load_model("squeezenet")
CLUSTER = cluster_of(1, 1, 1)
SLOW = replace(CLUSTER, nodes=tuple([replace(node, bandwidth_in=5e6, bandwidth_out=5e6) for node in CLUSTER.nodes]))
NONE, EACH = np.zeros(1, np.int64), np.ones(1, np.int64)


def _seconds(preset: str, overlap: Overlap = "backward", **options: int) -> float:
    strategy = replace(build_preset(preset, MODEL, SLOW, **options), overlap=overlap)
    return TimelineSimulator(MODEL, SLOW, costs=GLOO).predict([strategy])[0].seconds


@pytest.mark.parametrize("overlap", ["backward", "forward"])
@pytest.mark.parametrize("staleness", [1, 2, 4, 40])
def test_a_stale_step_is_no_faster_than_its_transfers(staleness: int, overlap: Overlap) -> None:
    """However far steps may run ahead, each has its bytes to send: what lies ahead hides latency and no more.

    Nor is it much slower: bytes of several steps stand before a receiver, and requests behind them.
    """
    found, exact = _seconds("ssp", overlap, staleness=staleness), _seconds("ps_load_balanced")
    # Each of three hosts serves a part, at the least a third: it gets that of two others, and sends it to them.
    least = 2 * MODEL.num_bytes / 3 / SLOW.nodes[0].bandwidth_in
    assert least > 1.2 * MODEL.step_seconds
    assert least <= found <= 1.03 * exact


@pytest.mark.parametrize("every", [2, 8, 64, 500, 10**9])
def test_the_seldomer_the_cheaper(every: int) -> None:
    usual, other = MODEL.step_seconds, _seconds("local_sgd", every=4)
    found = _seconds("local_sgd", every=every)
    assert usual * 0.999 <= found
    # A step with an average and steps without one.
    assert found == pytest.approx(usual + 4 * (other - usual) / every, rel=0.05)


@pytest.mark.parametrize("periods", [(2, 3), (3, 2), (2, 64), (64, 500)])
def test_each_average_counts_by_its_own_period(periods: tuple[int, int]) -> None:
    never, simulator = 10**9, TimelineSimulator(two_layers(), CLUSTER, costs=GLOO)

    def seconds(*every: int) -> float:
        pairs = zip(("second", "first"), every, strict=True)
        messages = [Message(parts=(name,), synchroniser=Periodic(every=one)) for name, one in pairs]
        return simulator.predict([Strategy(messages=tuple(messages))])[0].seconds

    usual = seconds(never, never)
    takes = [2 * (seconds(2, never) - usual), 2 * (seconds(never, 2) - usual)]
    expected = usual + sum(one / every for one, every in zip(takes, periods, strict=True))
    assert seconds(*periods) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("every", [3, 5, 64])
def test_a_step_that_averages_is_explained(every: int) -> None:
    found = TimelineSimulator(MODEL, SLOW, costs=GLOO).explain(build_preset("local_sgd", MODEL, SLOW, every=every))
    assert found.average_seconds == pytest.approx(
        MODEL.step_seconds + every * (found.seconds - MODEL.step_seconds), rel=0.02
    )
    assert any(one.kind == "transfer" for one in found.critical_path)
    assert sum(one.seconds for one in found.critical_path) == pytest.approx(found.average_seconds, rel=0.02)


@pytest.mark.parametrize("preset", ["diloco", "local_sgd", "ssp"])
def test_what_is_seldom_is_explained_and_traced(preset: str) -> None:
    simulator, strategy = TimelineSimulator(MODEL, SLOW, costs=GLOO), build_preset(preset, MODEL, SLOW)
    found = simulator.explain(strategy)
    assert found.seconds == pytest.approx(simulator.predict([strategy])[0].seconds)
    assert any(one.kind == "transfer" for one in found.critical_path)
    assert all(np.isfinite([one.start_seconds, one.end_seconds]).all() for one in found.critical_path)
    assert simulator.trace(strategy)


def test_no_plan_is_played_without_end() -> None:
    every, lag = within_reach(np.array([1, 10**9]), np.array([0, 10**9]))
    assert (every.tolist(), lag.tolist()) == ([1, RAREST], [0, LONGEST_LAG])
    assert num_iterations(EACH, NONE) == NUM_ITERATIONS
    assert num_iterations(every, lag) == 2 * RAREST + 3 * LONGEST_LAG
    # Plans with several periods repeat after their least common multiple, if that is within reach.
    assert num_iterations(np.array([1, 2, 3]), NONE) == 12
    assert num_iterations(np.array([5, 7, 9]), NONE) == 2 * RAREST
    assert [num_until_all(np.array([1, one]), NONE, 0) for one in (1, 3, 8, 10**9)] == [8, 9, 16, 2 * RAREST]


def test_steps_that_take_turns_count_by_their_median() -> None:
    ends = np.cumsum([9.0, 1.0, 3.0, 1.0, 3.0, 1.0, 3.0, 1.0])
    assert step_seconds(ends, np.zeros((8, 1)), EACH, NONE) == pytest.approx(2.0)
    assert step_seconds(ends[:3], np.zeros((8, 1)), EACH, NONE) == pytest.approx(3.0)


def test_transfers_that_fall_behind_set_the_pace() -> None:
    """Steps still run ahead of them: it takes many until they must wait."""
    lag = np.array([4])
    count = num_iterations(EACH, lag)
    ends = np.arange(1.0, count + 1)
    ended = 1.1 * np.arange(1.0, count + 1)[:, None]
    ended[-4:] = np.nan
    assert step_seconds(ends, ended, EACH, lag) == pytest.approx(1.1)
    assert step_seconds(ends, ended / 2, EACH, lag) == pytest.approx(1.0)
