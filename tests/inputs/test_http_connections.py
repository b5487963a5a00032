"""Idle connections that may have ended in silence are not trusted for long."""

import contextlib
import http.client
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from autosync.inputs import http_connections
from autosync.inputs.http_connections import IDLE, HttpServer
from autosync.inputs.http_requests import Patience
from autosync.inputs.storage import open_shard
from tests.helpers.shards import serving


def test_connections_that_ended_in_silence_cost_one_try_together(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(1000))
    with serving(tmp_path) as server, contextlib.ExitStack() as others:
        file = open_shard(f"{server.url}/data", Patience(num_retries=1, timeout_seconds=0.5, pause_seconds=0))
        address = urlsplit(server.url)
        assert address.hostname is not None
        for _ in range(4):
            silent = http.client.HTTPConnection(address.hostname, address.port)
            silent.sock, other = socket.socketpair()
            others.enter_context(other)
            IDLE.put(HttpServer("http", address.hostname, address.port), silent)
        assert file.read(0, 100) == (bytes(100), 1)


def test_a_connection_that_was_idle_for_long_is_not_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").write_bytes(bytes(1000))
    with serving(tmp_path) as server:
        file = open_shard(f"{server.url}/data")
        file.read(0, 100)
        assert server.num_connections == 1
        monkeypatch.setattr(http_connections, "_IDLE_SECONDS", -1.0)
        file.read(0, 100)
        assert server.num_connections == 2
