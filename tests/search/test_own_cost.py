"""The cost of tuning besides the trials: a service is timed, however its calls end."""

from types import SimpleNamespace

import pytest

from autosync.search import own_cost
from autosync.search.own_cost import TimedService, peak_memory_bytes
from autosync.testing.trials import FakeService, FakeSteps
from autosync.trials.contestant import Contestant
from autosync.trials.service import TrialFailed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock takes a second."""
    now = iter(range(1_000))
    monkeypatch.setattr(own_cost, "time", SimpleNamespace(monotonic=lambda: float(next(now))))


@pytest.mark.usefixtures("clock")
def test_every_call_counts_and_is_passed_on() -> None:
    inner = FakeService({"a": FakeSteps(seconds=0.1), "b": FakeSteps(seconds=0.1, gradient_error=0.5)})
    service = TimedService(inner)
    for name in ("a", "b"):
        service.prepare(Contestant(name=name))
    assert len(service.run("a", 3, settle=True).step_seconds[0]) == 3
    assert service.difference("a", "b") == 0.5
    service.release("a")
    assert service.busy_seconds == 5.0
    assert inner.prepared == {"b"}
    assert ("run and settle", "a", 3) in inner.calls


@pytest.mark.usefixtures("clock")
def test_calls_that_fail_took_their_time_too() -> None:
    service = TimedService(FakeService({"a": FakeSteps(seconds=0.1, fails_at=0)}))
    with pytest.raises(TrialFailed):
        service.prepare(Contestant(name="a"))
    assert service.busy_seconds == 1.0


def test_memory_is_in_bytes() -> None:
    assert 10_000_000 < peak_memory_bytes() < 100_000_000_000
