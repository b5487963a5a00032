"""The choice among strategies with nearly equal predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autosync.scaling.fastest import fastest_by_both
from autosync.search.candidates import Candidate
from autosync.simulators.interface import Prediction
from autosync.strategy.representation import Strategy

LEAN, BUSY = Strategy(messages=()), Strategy(messages=(), overlap="forward")


@dataclass(frozen=True)
class _Known:
    """A simulator with a known answer for each kind of overlap."""

    seconds: Mapping[str, float]
    name: str = "known"

    def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
        return [Prediction(seconds=self.seconds[one.overlap]) for one in strategies]


def _candidate(strategy: Strategy) -> Candidate:
    return Candidate(origin="sampled", strategy=strategy, strategy_id=strategy.overlap)


def test_a_strategy_that_needs_more_processor_time_must_gain_more() -> None:
    found = [_candidate(BUSY), _candidate(LEAN)]
    usual = _Known({LEAN.overlap: 1.01, BUSY.overlap: 1.0})
    costly = _Known({LEAN.overlap: 1.02, BUSY.overlap: 1.3})
    assert fastest_by_both(found, usual, costly) is found[1]
    assert fastest_by_both(found, usual, usual) is found[0]


def test_without_strategies_nothing_is_found() -> None:
    assert fastest_by_both([], _Known({}), _Known({})) is None
