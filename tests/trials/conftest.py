"""Two ranks on this machine, and the guarantee that none of them is left when a test ends."""

import os
from collections.abc import Iterator

import pytest

from autosync.launchers.local import LocalLaunch
from autosync.launchers.request import Process
from autosync.specs.cluster import ClusterSpec, Node


@pytest.fixture
def cluster() -> ClusterSpec:
    node = Node(name="this", host="localhost", devices=2, bandwidth_out=1e9, bandwidth_in=1e9)
    return ClusterSpec(name="pair", nodes=(node,))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The ids of the processes that the launcher started; all must be gone at the end."""
    ids: list[int] = []
    add = LocalLaunch.add

    def watched(self: LocalLaunch, process: Process) -> None:
        add(self, process)
        ids.append(self._running[-1].pid)

    monkeypatch.setattr(LocalLaunch, "add", watched)
    yield ids
    for process in ids:
        assert not _is_running(process), f"process {process} is left"


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
