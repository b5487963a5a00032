"""What other programs use of the machine: theirs, not ours and not the kernel's."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from autosync.specs.background_load import BackgroundLoad

ME = os.getpid()
# Who started whom: this process has a child, and that one another; 2 is the kernel's.
PARENTS = {1: 0, 2: 0, 3: 2, 500_000: 1, ME: 500_000, 600_000: ME, 700_000: 600_000, 800_000: 1}


class Proc:
    """A /proc in which time is what a test says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ticks = dict.fromkeys(PARENTS, 100)
        self._reaped = dict.fromkeys(PARENTS, 2)
        self._busy = 1000
        self._idle = 1000
        self._stolen = 0
        self._write()

    def let(self, used: Mapping[int, int], *, idle: int = 0, stolen: int = 0) -> None:
        for pid, ticks in used.items():
            self._ticks[pid] += ticks
            self._busy += ticks
        self._idle += idle
        self._stolen += stolen
        self._write()

    def end(self, pid: int, *, is_awaited: bool = True) -> None:
        """The process ends, and its parent has waited for it or has not."""
        used = self._ticks.pop(pid) + self._reaped.pop(pid)
        if is_awaited:
            self._reaped[PARENTS[pid]] += used
        self._path(pid).unlink()
        self._write()

    def _path(self, pid: int) -> Path:
        return self.path / str(pid) / "stat"

    def _write(self) -> None:
        for pid, ticks in self._ticks.items():
            self._path(pid).parent.mkdir(exist_ok=True)
            # utime, stime, cutime and cstime are the fields 14 to 17.
            fields = ["S", PARENTS[pid], *[0] * 9, ticks - 1, 1, self._reaped[pid] - 1, 1, *[7] * 5]
            self._path(pid).write_text(f"{pid} (a name) with ) in it) {' '.join(map(str, fields))}\n")
        (self.path / "stat").write_text(f"cpu  {self._busy} 0 0 {self._idle} 0 0 0 {self._stolen} 0 0\ncpu0 1 2 3\n")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    (tmp_path / "self").mkdir()
    return Proc(tmp_path)


def test_what_we_and_ours_use_is_not_others(proc: Proc) -> None:
    looking = BackgroundLoad(proc.path)
    proc.let({ME: 30, 600_000: 20, 700_000: 20, 3: 20}, idle=10)
    assert looking.share() == 0
    proc.let({500_000: 10, 800_000: 15, 700_000: 25}, idle=50)
    assert looking.share() == pytest.approx(0.25)
    assert looking.share() == 0


def test_what_the_host_takes_away_counts_as_others(proc: Proc) -> None:
    looking = BackgroundLoad(proc.path)
    proc.let({ME: 60}, idle=20, stolen=20)
    assert looking.share() == pytest.approx(0.2)


def test_processes_that_end_count_as_long_as_they_ran(proc: Proc) -> None:
    looking = BackgroundLoad(proc.path)
    proc.let({800_000: 5, 700_000: 5}, idle=90)
    proc.end(800_000)
    proc.end(700_000)
    assert looking.share() == pytest.approx(0.05)


def test_a_process_that_ends_unawaited_hides_nothing_that_others_use(proc: Proc) -> None:
    looking = BackgroundLoad(proc.path)
    proc.let({500_000: 40, ME: 20, 600_000: 10}, idle=30)
    proc.end(800_000, is_awaited=False)
    proc.end(700_000, is_awaited=False)
    usage = looking.usage()
    assert (usage.share, usage.own_share) == (0.4, 0.3)


def test_a_child_that_becomes_an_orphan_brings_no_time_of_before(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    looking = BackgroundLoad(proc.path)
    monkeypatch.setitem(PARENTS, 700_000, 1)
    proc.let({700_000: 10}, idle=90)
    assert looking.share() == pytest.approx(0.1)


def test_what_our_children_use_is_ours_while_they_run_and_when_they_have_ended(proc: Proc) -> None:
    looking = BackgroundLoad(proc.path)
    proc.let({ME: 30, 600_000: 20, 700_000: 10, 800_000: 15}, idle=25)
    proc.end(700_000)
    usage = looking.usage()
    assert (usage.share, usage.own_share, usage.num_ticks) == (0.15, 0.6, 100)


def test_this_machine_can_be_looked_at() -> None:
    assert 0 <= BackgroundLoad().share() <= 1
