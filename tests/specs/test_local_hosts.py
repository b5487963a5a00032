"""The local launcher starts ranks on this machine alone."""

import socket
from pathlib import Path

import pytest

from autosync.errors import DocumentError
from autosync.specs.cluster_file import load_cluster
from autosync.specs.local_hosts import is_this_machine

REMOTE = """nodes:
- {name: here, host: 127.0.0.1, bandwidth: 1 Gbit/s}
- {name: a, host: gpu1.example.com, bandwidth: 1 Gbit/s}
- {name: b, count: 2, bandwidth: 1 Gbit/s}
"""


def test_the_local_launcher_with_other_machines_is_refused_where_ranks_are_started(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(f"schema: autosync.cluster/1\n{REMOTE}", encoding="utf-8")
    with pytest.raises(DocumentError) as caught:
        load_cluster(path, is_run=True)
    assert [(one.line, one.what) for one in caught.value.problems] == [
        (4, "a is on gpu1.example.com"),
        (5, "b-0 is on b-0"),
        (5, "b-1 is on b-1"),
    ]
    assert caught.value.problems[0].hint == "launcher: ssh reaches other machines"
    # Strategies can still be built and simulated for it.
    assert len(load_cluster(path).nodes) == 4
    path.write_text(f"schema: autosync.cluster/1\nlauncher: ssh\n{REMOTE}", encoding="utf-8")
    assert len(load_cluster(path, is_run=True).nodes) == 4


def test_this_machine_has_its_names_and_loopback_addresses() -> None:
    for host in ("localhost", socket.gethostname(), "127.0.0.1", "127.8.8.8", "::1"):
        assert is_this_machine(host)
    for host in ("gpu1", "10.0.0.1", "::2"):
        assert not is_this_machine(host)
