"""The program on nodes that tests whether they reach one another."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from autosync.launchers import node_report


@pytest.fixture
def port() -> Iterator[int]:
    """Where a node listens that has told what it is like."""
    process = subprocess.Popen(
        (sys.executable, node_report.__file__, "tell"), stdout=subprocess.PIPE, env=dict(os.environ)
    )
    try:
        assert process.stdout is not None
        told, listening = json.loads(process.stdout.readline()), json.loads(process.stdout.readline())
        assert told["free_memory_bytes"] > 0
        yield listening["port"]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_node_is_reached_by_either_kind_of_address(address: str, port: int) -> None:
    if address == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    assert node_report.reach({"n1": (address, port)}) == {}


def test_who_cannot_be_reached_is_named_with_the_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert list(node_report.reach({"n1": ("127.0.0.1", port)})) == ["n1"]
