"""What every test run shares: one thread a process, properties that do not depend on timing, disks that are full."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Before anything imports numpy or torch: tests run side by side, and more threads than cores slow them all.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests may import `benchmarks` and `tools`: neither is installed.
sys.path.append(str(Path(__file__).parents[1]))

import pytest
from hypothesis import HealthCheck, settings

# A shell that runs the tests in its background has them ignore Ctrl-C, and what they start inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Derandomised, so that a red run is red again. `make fulltest` tries four times as many examples, and
# `--hypothesis-profile=explore` looks for new ones.
settings.register_profile(
    "repeatable",
    max_examples=50,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("repeatable"), max_examples=200)
settings.register_profile(
    "explore",
    settings.get_profile("repeatable"),
    derandomize=False,
    max_examples=1000,
)
settings.load_profile("repeatable")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.helpers.by_file import ByFile

    return ByFile(config, log)


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What tuning runs of tests remember is no business of this user's."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("state")
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def no_compiler_in_the_background() -> Iterator[None]:
    """Simulators are compiled by the test that needs them first: no process outlives the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autosync.first_calls.start_compiler", lambda _: None)
        yield


@pytest.fixture
def forked_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The local launcher forks its ranks from a process that has imported torch: they are there at once."""
    from tests.helpers.forks import Forked

    def start(command: Sequence[str], **options: Any) -> Any:
        return (Forked if command[0] == sys.executable else subprocess.Popen)(command, **options)

    names = ("DEVNULL", "STDOUT", "TimeoutExpired")
    stand_in = SimpleNamespace(Popen=start, **{name: getattr(subprocess, name) for name in names})
    monkeypatch.setattr("autosync.launchers.local.subprocess", stand_in)


@pytest.fixture
def mount_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a disk of so many kilobytes: a file system in memory, for the test alone."""
    mounted: list[Path] = []

    def mount(num_kilobytes: int) -> Path:
        folder = tmp_path / f"disk-{len(mounted)}"
        folder.mkdir()
        command = ("mount", "-t", "tmpfs", "-o", f"size={num_kilobytes}k", "tmpfs", str(folder))
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    # Whoever stands on a disk holds it.
    before = Path.cwd()
    yield mount
    os.chdir(before)
    for folder in mounted:
        subprocess.run(("umount", str(folder)), check=True)


@pytest.fixture
def fill_disk() -> Callable[[Path], Path]:
    """Takes all the room that is left on a disk, with a file that it returns."""

    def fill(folder: Path) -> Path:
        path = folder / "filler"
        with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        return path

    return fill


@pytest.fixture
def await_gone() -> Callable[[Iterable[int]], None]:
    """Waits until processes have ended: who is killed takes a moment, and another until somebody has asked for it."""

    def wait(processes: Iterable[int]) -> None:
        deadline = time.monotonic() + 30
        while left := [process for process in processes if _is_running(process)]:
            assert time.monotonic() < deadline, f"left: {left}"
            time.sleep(0.05)

    return wait


def _is_running(process: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
