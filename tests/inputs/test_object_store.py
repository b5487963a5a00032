"""Shards in an object store: a real server of S3's protocol, which moto gives, read through fsspec's plugin."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import autosync
from autosync.errors import InputError, OperationError
from autosync.inputs import storage
from autosync.inputs.tar_shards import TarShards
from autosync.specs.input_settings import InputSettings
from tests.helpers.shards import number_of, write_shards

boto3 = pytest.importorskip("boto3", reason="no client of S3 is installed: make fulltest installs one")
pytest.importorskip("moto", reason="no server of S3's protocol is installed: make fulltest installs one")
pytest.importorskip("s3fs", reason="fsspec's plugin for S3 is not installed: make fulltest installs it")

BUCKET = "shards"
START_SECONDS = 60.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(aio)?botocore.*"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A running server, with a client that writes to it."""

    process: subprocess.Popen[bytes]
    host: str
    client: Any


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    host = f"127.0.0.1:{port}"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "name")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr("fsspec.config.conf", {"s3": {"endpoint_url": f"http://{host}"}})
    command = (sys.executable, "-P", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await(process, port)
        client = boto3.client("s3", endpoint_url=f"http://{host}")
        client.create_bucket(Bucket=BUCKET)
        yield Store(process=process, host=host, client=client)
    finally:
        process.kill()
        process.wait()


def _await(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        else:
            return


@pytest.fixture
def shards(store: Store, tmp_path: Path) -> TarShards:
    paths = write_shards(tmp_path, [7, 12, 4])
    for path in paths:
        store.client.upload_file(str(path), BUCKET, path.name)
    return TarShards([f"s3://{BUCKET}/{path.name}" for path in paths], decode=number_of)


def _read(shards: TarShards, settings: InputSettings) -> list[int]:
    return [number for batch in autosync.loader(shards, settings, batch_size=4) for number in batch.tolist()]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_example_comes_once(store: Store, shards: TarShards, num_workers: int) -> None:
    settings = InputSettings(num_workers=num_workers, read_bytes=2048, read_concurrency=3)
    batches = autosync.loader(shards, settings, batch_size=4)
    found = [number for batch in batches for number in batch.tolist()]
    assert sorted(found) == list(range(23))
    (host, totals), *others = batches.report().hosts.items()
    assert not others
    assert host == store.host
    assert totals.num_bytes > sum(shards.shard_bytes) / 4


@pytest.fixture
def _checked_at_each_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "CHECK_SECONDS", 0.0)


@pytest.mark.usefixtures("_checked_at_each_read")
def test_a_changed_object_is_an_error(store: Store, shards: TarShards) -> None:
    settings = InputSettings(num_workers=0)
    assert len(_read(shards, settings)) == 23
    size = shards.shard_bytes[0]
    store.client.upload_fileobj(io.BytesIO(bytes(size)), BUCKET, "000.tar")
    with pytest.raises(OperationError, match=r"s3://shards/000\.tar: the file on 127\.0\.0\.1:\d+ changed while"):
        _read(shards, settings)


def test_a_shorter_object_is_an_error_at_once(store: Store, shards: TarShards) -> None:
    store.client.upload_fileobj(io.BytesIO(b"x"), BUCKET, "000.tar")
    with pytest.raises(OperationError, match=r"s3://shards/000\.tar"):
        _read(shards, InputSettings(num_workers=0))


def test_a_missing_object_and_a_server_that_ended_are_named(store: Store, shards: TarShards) -> None:
    with pytest.raises(InputError, match=r"s3://shards/none\.tar: 127\.0\.0\.1:\d+ has no such file"):
        TarShards([f"s3://{BUCKET}/none.tar"])
    store.process.kill()
    store.process.wait()
    with pytest.raises(OperationError, match=rf"{store.host} refused bytes \d+ to \d+: Could not connect"):
        _read(shards, InputSettings(num_workers=0))
