"""Fixtures of launchers' tests that interrupt launches, end them, or take a node or its disk away.

`tests/launchers/conftest.py` has the fixtures that these use.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

TRAIN = Path(__file__).parents[1] / "launchers" / "train.py"
LIMIT_SECONDS = 30.0
"""The time until nothing is left of a launch, and until the reason is reported."""


@pytest.fixture
def check_ctrl_c(
    start: Callable[..., subprocess.Popen[str]], bundle: Path, await_free: Callable[..., None]
) -> Callable[..., None]:
    """Interrupts launches after some seconds each, whatever they are about: each ends, and nothing is left."""

    def check(*moments: float) -> None:
        for seconds in moments:
            launched = start("launch", bundle, "--", TRAIN, "--wait")
            with contextlib.suppress(subprocess.TimeoutExpired):
                launched.wait(seconds)
            launched.send_signal(signal.SIGINT)
            _, err = launched.communicate(timeout=LIMIT_SECONDS)
            # Python itself is interrupted while it starts.
            assert launched.returncode in (130, -signal.SIGINT), err
            await_free()

    return check


@pytest.fixture
def check_ended(
    start_waiting: Callable[[], tuple[subprocess.Popen[str], list[int]]],
    await_free: Callable[..., None],
    await_gone: Callable[[Iterable[int]], None],
) -> Callable[[int], None]:
    """Sends a signal to a launch whose ranks wait: it ends, and nothing is left."""

    def check(number: int) -> None:
        launched, processes = start_waiting()
        launched.send_signal(number)
        _, err = launched.communicate(timeout=60)
        assert launched.returncode == (-number if number == signal.SIGKILL else 128 + number), err
        await_free()
        await_gone(processes)

    return check


@pytest.fixture
def check_tuning_ended(
    start_tuning: Callable[[], subprocess.Popen[str]], check_kept: Callable[[], None], await_free: Callable[..., None]
) -> Callable[[int], None]:
    """Sends a signal to a tuning run that has a trial: it ends, the trial is kept, and nothing is left."""

    def check(number: int) -> None:
        tuned = start_tuning()
        tuned.send_signal(number)
        _, err = tuned.communicate(timeout=LIMIT_SECONDS)
        assert tuned.returncode == (-number if number == signal.SIGKILL else 128 + number), err
        assert number != signal.SIGINT or err.splitlines()[-1] == "interrupted"
        check_kept()
        await_free()

    return check


@pytest.fixture
def cut_off(hosts: Any, await_free: Callable[..., None]) -> Iterator[Callable[[], str]]:
    """Takes the node n1 off the network until the test is over; what it is called then.

    Whatever it ran ends when it has heard nothing for a while, and is waited for while nobody can reach it.
    """
    is_cut_off = False

    def cut() -> str:
        nonlocal is_cut_off
        is_cut_off = True
        hosts.bed.set_link("n1", up=False)
        return f"n1 ({hosts.bed.address('n1')})"

    yield cut
    if is_cut_off:
        try:
            await_free("n1", seconds=60)
        finally:
            hosts.rejoin("n1")


@pytest.fixture
def check_vanished(
    start_waiting: Callable[[], tuple[subprocess.Popen[str], list[int]]],
    cut_off: Callable[[], str],
    await_free: Callable[..., None],
) -> Callable[..., None]:
    """Loses a node of a launch: that is said soon, and why, and nothing is left on the others."""

    def check(*others: str, said: str = "") -> None:
        launched, _ = start_waiting()
        began = time.monotonic()
        node = cut_off()
        _, err = launched.communicate(timeout=80)
        assert time.monotonic() - began < LIMIT_SECONDS, err
        assert launched.returncode == 255, err
        assert f"error: {node}: {said}" in err
        await_free(*others)

    return check


@pytest.fixture
def check_vanished_in_tuning(
    start_tuning: Callable[[], subprocess.Popen[str]],
    check_kept: Callable[[], None],
    cut_off: Callable[[], str],
    await_free: Callable[..., None],
) -> Callable[..., None]:
    """Loses a node of a tuning run: that is said soon, and why; it ends, what was tried is kept, and nothing is left on
    the others.
    """

    def check(*others: str, said: str = "") -> None:
        tuned = start_tuning()
        assert tuned.stderr is not None
        began = time.monotonic()
        node = cut_off()
        named = next((line for line in tuned.stderr if node in line), "")
        assert time.monotonic() - began < LIMIT_SECONDS, named
        assert f"{node}: {said}" in named
        _, err = tuned.communicate(timeout=began + 80 - time.monotonic())
        assert tuned.returncode == 1, err
        # Once the allocation has ended for want of it, the other node's step cannot start either, and says why.
        assert re.search(r"error: .*\bn1\b.* \(the study is kept in \S*kept\)", err), err
        check_kept()
        await_free(*others)

    return check


@pytest.fixture
def check_full_disk(
    hosts: Any,
    make_bundle: Callable[..., Path],
    run: Callable[..., tuple[int, str, str]],
    await_free: Callable[..., None],
    mount_disk: Callable[[int], Path],
) -> Callable[[], None]:
    """Launches where n1 has no room for what it is sent: that is said, and nothing is left."""

    def check() -> None:
        # Room enough to try whether there is any, and too little for the copy of the bundle.
        disk = mount_disk(4)
        bundle = make_bundle(hosts.cluster)
        bundle.write_text(f"{bundle.read_text()}# {'long ' * 2000}\n")
        hosts.keep_temporary("n1", disk)
        try:
            code, out, err = run("launch", bundle, "--", TRAIN)
            assert (code, out) == (1, ""), err
            rank = hosts.cluster.nodes[0].devices
            assert f"error: rank {rank} on n1 could not be started: [Errno 28] No space left on device: " in err
            assert f"'{disk}/" in err
            await_free()
            assert list(disk.iterdir()) == []
        finally:
            hosts.keep_temporary("n1", None)

    return check
