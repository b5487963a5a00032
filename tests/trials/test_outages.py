"""How often failures of the machines are put up with."""

from __future__ import annotations

import pytest

from autosync.errors import OperationError
from autosync.trials import outages
from autosync.trials.failures import TrialFailed
from autosync.trials.outages import MAX_LOST, PAUSES_SECONDS, Outages

LOST = TrialFailed("lost_rank", "rank 1 is gone", blame="either")
FULL = TrialFailed("launch", "the disk is full")


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made, none of which takes any time."""
    made: list[float] = []
    monkeypatch.setattr(outages.time, "sleep", made.append)
    return made


def test_a_lost_rank_is_excused_once_for_each_contestant() -> None:
    some = Outages()
    assert some.excuses("a", LOST)
    assert some.excuses("b", LOST)
    assert not some.excuses("a", LOST)
    assert some.excuses("a", FULL)
    assert not some.excuses("c", TrialFailed("raised", "no such luck"))


def test_each_pause_is_longer_and_there_is_a_last_one(slept: list[float]) -> None:
    some, told = Outages(), list[str]()
    for _ in PAUSES_SECONDS:
        some.wait(FULL, told.append)
    assert slept == list(PAUSES_SECONDS) == sorted(PAUSES_SECONDS)
    assert told == ["trying again in 1 s", "trying again in 4 s"]
    with pytest.raises(OperationError, match=r"^the disk is full \(3 times in a row\)$"):
        some.wait(FULL)
    some.over()
    some.wait(FULL)
    assert slept[-1] == PAUSES_SECONDS[0]


def test_lost_ranks_are_put_up_with_for_longer(slept: list[float]) -> None:
    some = Outages()
    for _ in range(MAX_LOST - 1):
        some.wait(LOST)
    assert slept == [PAUSES_SECONDS[0]] * (MAX_LOST - 1)
    with pytest.raises(OperationError, match=r"rank 1 is gone \(10 times in a row\)"):
        some.wait(LOST)
