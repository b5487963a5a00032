"""A campaign waits until other programs use little of the machine, and gives up when they do not stop."""

from pathlib import Path

import pytest

from autosync.errors import OperationError
from benchmarks.dataset.machine import LOOK_SECONDS, Machine


class Proc:
    """A /proc with one process of somebody else's, in which time is what a test says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._used, self._idle = 100, 1000
        (path / "800000").mkdir()
        self.let(0, idle=0)

    def let(self, used: int, *, idle: int) -> None:
        self._used += used
        self._idle += idle
        fields = ["S", 1, *[0] * 9, self._used, *[0] * 8]
        (self.path / "800000" / "stat").write_text(f"800000 (name) {' '.join(map(str, fields))}\n")
        (self.path / "stat").write_text(f"cpu  {self._used} 0 0 {self._idle} 0 0 0 0 0 0\n")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def machine(proc: Proc, **options: object) -> Machine:
    return Machine(max_other_cpu=0.1, patience_seconds=20, proc=proc.path, **options)  # type: ignore[arg-type]


def test_quiet_is_waited_for(proc: Proc) -> None:
    told: list[str] = []
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        proc.let(50 if len(waits) < 4 else 1, idle=50)

    machine(proc, sleep=sleep, clock=lambda: sum(waits)).await_quiet(told.append)
    assert waits == [LOOK_SECONDS, 5, LOOK_SECONDS, 5, LOOK_SECONDS]
    assert told == ["waiting: other programs use 50% of the processors (at most 10% may be)"]


def test_patience_ends(proc: Proc) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        proc.let(50, idle=50)

    with pytest.raises(OperationError, match="other programs use 50% of the processors"):
        machine(proc, sleep=sleep, clock=lambda: sum(waits)).await_quiet(lambda _: None)
    assert 20 <= sum(waits) < 22
