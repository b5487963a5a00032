"""The workloads of the benchmark: datasets in a folder of their own, made from a seed."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from autosync.inputs.storage import open_shard
from autosync.inputs.storage_rates import forget_cached
from autosync.inputs.tar_shards import TarShards

DELAY_SECONDS = 0.02
"""The time that the server takes for each request, beside the bytes."""

SERVER_RATE = 50e6
"""The bytes a second that the server gives, all connections together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A dataset, its batch size, and what is done before each trial."""

    dataset: Any
    batch_size: int
    prepare: Callable[[], None] | None = None


class SmallFiles:
    """One file for each example."""

    def __init__(self, folder: Path, count: int) -> None:
        folder.mkdir()
        self.paths = [folder / f"{number:06}.bin" for number in range(count)]
        for number, path in enumerate(self.paths):
            path.write_bytes(np.random.default_rng(number).bytes(4096))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Any:
        return mean_of({"bin": self.paths[number].read_bytes()})


def mean_of(sample: dict[str, Any]) -> float:
    return float(np.frombuffer(sample["bin"], dtype=np.uint8).mean())


def heavy_mean_of(sample: dict[str, Any]) -> float:
    """Decode with some milliseconds of arithmetic."""
    values = np.frombuffer(sample["bin"], dtype=np.uint8).astype(float)
    for _ in range(20):
        values = np.sort(np.sin(values))
    return float(values.mean())


def write_shards(folder: Path, *, num_shards: int, num_samples: int, num_bytes: int) -> list[Path]:
    """Write shards of random bytes."""
    folder.mkdir()
    paths = [folder / f"{shard:04}.tar" for shard in range(num_shards)]
    chance = np.random.default_rng(0)
    for path in paths:
        with tarfile.open(path, "w") as archive:
            for number in range(num_samples):
                member = tarfile.TarInfo(f"{path.stem}/{number:06}.bin")
                member.size = num_bytes
                archive.addfile(member, io.BytesIO(chance.bytes(num_bytes)))
    return paths


@contextlib.contextmanager
def small_files(folder: Path) -> Iterator[Workload]:
    yield Workload(dataset=SmallFiles(folder / "files", 2000), batch_size=32)


@contextlib.contextmanager
def tar_shards(
    folder: Path, *, num_samples: int = 256, num_bytes: int = 8192, decode: Callable[[Any], Any] = mean_of
) -> Iterator[Workload]:
    paths = write_shards(folder / "shards", num_shards=8, num_samples=num_samples, num_bytes=num_bytes)
    yield Workload(dataset=TarShards(paths, decode=decode), batch_size=16)


@contextlib.contextmanager
def cold_cache(folder: Path) -> Iterator[Workload]:
    paths = write_shards(folder / "shards", num_shards=8, num_samples=256, num_bytes=65536)
    files = [open_shard(str(path)) for path in paths]

    def forget() -> None:
        for file in files:
            forget_cached(file)

    yield Workload(dataset=TarShards(paths, decode=mean_of), batch_size=16, prepare=forget)


@contextlib.contextmanager
def remote(folder: Path) -> Iterator[Workload]:
    paths = write_shards(folder / "shards", num_shards=4, num_samples=128, num_bytes=65536)
    with limited_server(folder / "shards") as url:
        yield Workload(dataset=TarShards([f"{url}/{path.name}" for path in paths], decode=mean_of), batch_size=16)


WORKLOADS: dict[str, Callable[[Path], contextlib.AbstractContextManager[Workload]]] = {
    "small_files": small_files,
    "tar_shards": tar_shards,
    "large_records": partial(tar_shards, num_samples=8, num_bytes=2 * 2**20),
    "heavy_decode": partial(tar_shards, decode=heavy_mean_of),
    "remote": remote,
    "cold_cache": cold_cache,
}


@contextlib.contextmanager
def limited_server(folder: Path, *, host: str = "127.0.0.1", port: int = 0, rate: float = SERVER_RATE) -> Iterator[str]:
    """Serve a folder with a delay for each request and one rate for all connections."""
    lock = threading.Lock()
    free_at = time.monotonic()

    def wait_for(num_bytes: int) -> None:
        nonlocal free_at
        with lock:
            free_at = max(free_at, time.monotonic()) + num_bytes / rate
            until = free_at
        time.sleep(max(until - time.monotonic(), 0.0))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Otherwise answers wait for an acknowledgement of their headers.
        disable_nagle_algorithm = True

        def log_message(self, *_arguments: Any) -> None:
            """The benchmark prints one document."""

        def do_GET(self) -> None:
            time.sleep(DELAY_SECONDS)
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            with (folder / Path(self.path).name).open("rb") as file:
                num_bytes = file.seek(0, os.SEEK_END)
                file.seek(first)
                piece = file.read(last + 1 - first)
            self.send_response(206)
            self.send_header("Content-Length", str(len(piece)))
            self.send_header("Content-Range", f"bytes {first}-{first + len(piece) - 1}/{num_bytes}")
            self.end_headers()
            with contextlib.suppress(OSError):
                for at in range(0, len(piece), 65536):
                    wait_for(len(piece[at : at + 65536]))
                    self.wfile.write(piece[at : at + 65536])

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
