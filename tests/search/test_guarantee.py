"""Who is declared the winner: nobody by luck."""

import pytest

from autosync.search.candidates import STOCK_DDP, Candidate
from autosync.search.guarantee import Contest, Verdict, declare
from autosync.trials.statistics import Interval

DEFAULT = Contest(
    candidate=STOCK_DDP,
    seconds=Interval(value=1.0, low=0.9, high=1.1),
    speedup=Interval(value=1.0, low=1.0, high=1.0),
)


def _contest(name: str, seconds: float, *, low: float, high: float) -> Contest:
    return Contest(
        candidate=Candidate(origin=name, strategy=None, strategy_id=name),
        seconds=Interval(value=seconds, low=seconds, high=seconds),
        speedup=Interval(value=1 / seconds, low=low, high=high),
    )


FAST = _contest("fast", 0.8, low=1.1, high=1.4)
FASTER_FOR_CERTAIN = _contest("certain", 0.7, low=1.2, high=1.5)
FASTEST_BY_LUCK = _contest("lucky", 0.6, low=0.99, high=3.0)
EQUAL_AT_LEAST = _contest("equal", 0.9, low=1.0, high=1.2)
SLOW = _contest("slow", 1.5, low=0.6, high=0.7)


@pytest.mark.parametrize(
    ("others", "winner"),
    [
        ((), DEFAULT),
        ((SLOW,), DEFAULT),
        ((FASTEST_BY_LUCK,), DEFAULT),
        ((EQUAL_AT_LEAST,), DEFAULT),
        ((FAST,), FAST),
        ((FAST, FASTER_FOR_CERTAIN), FASTER_FOR_CERTAIN),
        ((FASTER_FOR_CERTAIN, FAST), FASTER_FOR_CERTAIN),
        ((FASTEST_BY_LUCK, FAST, SLOW), FAST),
    ],
)
def test_the_fastest_of_those_that_are_faster_for_certain(others: tuple[Contest, ...], winner: Contest) -> None:
    declared = declare((DEFAULT, *others))
    assert declared == winner
    verdict = Verdict(contests=(DEFAULT, *others), winner=declared)
    assert verdict.beats_default == (winner is not DEFAULT)
