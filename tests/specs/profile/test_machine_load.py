"""What tells that a machine was busy: from files as the kernel has them, and from a machine that really is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from torch import nn

from autosync import Task
from autosync.specs.profile.machine_load import LEAST_TICKS, UNKNOWN, LoadWatch, MachineLoad
from autosync.specs.profile.quality import profile_warning
from autosync.specs.profile.run import profile

ME = os.getpid()


class Proc:
    """A /proc with this process, another one and two threads of ours."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.let(ours=100, others=100, idle=100, waited={"7": 0.0, "8": 5.0})

    def let(self, *, ours: int, others: int, idle: int, waited: dict[str, float]) -> None:
        """Counters since the machine is up."""
        (self.path / "stat").write_text(f"cpu  {ours + others} 0 0 {idle} 0 0 0 0 0 0\n")
        for pid, ticks in ((ME, ours), (1, others)):
            (self.path / str(pid)).mkdir(exist_ok=True)
            fields = ["S", 0, *[0] * 9, ticks, 0, 0, 0, *[0] * 5]
            (self.path / str(pid) / "stat").write_text(f"{pid} (name) {' '.join(map(str, fields))}\n")
        for thread, seconds in waited.items():
            folder = self.path / "self" / "task" / thread
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "schedstat").write_text(f"1000 {int(seconds * 1e9)} 17\n")


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    used = iter((10.0, 13.0))
    monkeypatch.setattr(time, "process_time", lambda: next(used))
    return Proc(tmp_path)


def test_shares_are_of_what_passed_since(proc: Proc) -> None:
    watch = LoadWatch(proc.path)
    proc.let(ours=150, others=130, idle=120, waited={"7": 0.5, "8": 5.25, "9": 0.25})
    # BackgroundLoad used 30 of 100 ticks; our threads waited for one second beside three in which they ran.
    assert watch.load() == MachineLoad(other_cpu_share=0.3, waited_share=0.25)


def test_of_few_ticks_others_are_not_told(proc: Proc) -> None:
    watch = LoadWatch(proc.path)
    proc.let(ours=100, others=99 + LEAST_TICKS, idle=100, waited={"7": 0.0, "8": 5.0})
    assert watch.load() == MachineLoad(other_cpu_share=None, waited_share=0.0)


def test_of_a_moment_waiting_is_not_told(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = LoadWatch(proc.path)
    monkeypatch.setattr(time, "process_time", lambda: 10.01)
    proc.let(ours=101, others=100, idle=100, waited={"7": 0.005, "8": 5.0})
    assert watch.load().waited_share is None


def test_where_nothing_is_told_nothing_is_known(tmp_path: Path) -> None:
    assert LoadWatch(tmp_path / "none").load() == UNKNOWN


def test_a_kernel_without_figures_of_waiting(proc: Proc) -> None:
    for path in proc.path.glob("self/task/*/schedstat"):
        path.unlink()
    assert LoadWatch(proc.path).load().waited_share is None


STEPS = 250
"""At one to two milliseconds each: long enough that the ticks of all processors tell of other programs."""


BURNER = """
import os, time
if os.fork():
    os._exit(0)
print(os.getpid(), flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    pass
"""
"""Leaves a process that does nothing but compute, and is no child of its caller: children count as ours."""


@contextmanager
def _burners() -> Iterator[None]:
    """Another program's process for each processor."""
    pids = []
    try:
        for _ in range(os.cpu_count() or 1):
            with subprocess.Popen([sys.executable, "-c", BURNER], stdout=subprocess.PIPE) as started:
                assert started.stdout is not None
                pids.append(int(started.stdout.readline()))
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel tells nothing")
def test_a_profile_on_a_machine_that_is_really_busy_says_so() -> None:
    """Whether an idle one says nothing is not asked: who knows how busy this machine is without us."""
    task = Task(
        model=lambda: nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)),
        batch=lambda generator: torch.randn(64, 256, generator=generator),
        loss=lambda model, batch: model(batch).pow(2).mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    with _burners():
        model = profile(task, steps=STEPS)
    found = model.timeline.profiled
    assert found is not None
    assert "busy_machine" in found.flags, found
    assert str(profile_warning(model)).startswith("the profile was taken on a busy machine: ")
    assert found.low_seconds is not None
    assert found.high_seconds is not None
    assert found.low_seconds <= model.step_seconds <= found.high_seconds
    assert found.num_steps == STEPS
