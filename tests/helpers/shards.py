"""Tar shards of known samples, and a real HTTP server whose failures tests choose."""

import contextlib
import io
import socket
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np


def write_shard(path: Path, numbers: range, *, num_bytes: int = 300) -> Path:
    """Write a shard whose samples have their number as `cls` and random bytes as `bin`."""
    with tarfile.open(path, "w") as archive:
        for number in numbers:
            data = np.random.default_rng(number).bytes(num_bytes + number % 7)
            for extension, content in (("bin", data), ("cls", str(number).encode())):
                member = tarfile.TarInfo(f"some/{number:06}.{extension}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return path


def write_shards(folder: Path, sizes: list[int]) -> list[Path]:
    """Write shards of these sizes, whose samples are numbered through."""
    ends = np.cumsum([0, *sizes])
    return [write_shard(folder / f"{n:03}.tar", range(ends[n], ends[n + 1])) for n in range(len(sizes))]


def number_of(sample: dict[str, Any]) -> int:
    """Return the number of a sample; the other field must be that of the same sample."""
    number = int(sample["cls"])
    assert sample["bin"] == np.random.default_rng(number).bytes(300 + number % 7)
    assert sample["__key__"] == f"some/{number:06}"
    return number


@dataclass
class ShardServer:
    """A folder over HTTP. A file may have the query of a URL in its name.

    `answers` are statuses that the next requests get instead of their data. With `cut_bytes`, bodies end after so many
    bytes, although the header promises more. `pause_seconds` passes before each piece of 4 kB.
    """

    folder: Path
    url: str = ""
    answers: list[int] = field(default_factory=list)
    cut_bytes: int | None = None
    pause_seconds: float = 0.0
    gives_ranges: bool = True
    tag: str = ""
    num_requests: int = 0
    num_connections: int = 0
    connections: list[socket.socket] = field(default_factory=list)

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    def file_of(self, target: str) -> Path:
        """Return the file that a request asks for."""
        asked = unquote(target.lstrip("/"))
        whole = self.folder / asked
        return whole if whole.is_file() else self.folder / asked.partition("?")[0]

    def end_connections(self) -> None:
        """End all connections, as servers do that were idle for long."""
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _ShardRequests(BaseHTTPRequestHandler):
    """Answers requests as a `ShardServer` says."""

    state: ShardServer
    protocol_version = "HTTP/1.1"
    # Otherwise the first piece waits 40 ms for an acknowledgement of the headers, if the pause is shorter.
    disable_nagle_algorithm = True

    def log_message(self, *_arguments: Any) -> None:
        """Tests print nothing."""

    def setup(self) -> None:
        super().setup()
        self.state.num_connections += 1
        self.state.connections.append(self.connection)

    def do_GET(self) -> None:
        self.state.num_requests += 1
        path = self.state.file_of(self.path)
        if self.state.answers:
            return self._head(self.state.answers.pop(0), 0)
        if not path.is_file():
            return self._head(404, 0)
        data = path.read_bytes()
        if not self.state.gives_ranges:
            self._head(200, len(data))
            return self._body(data)
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        if first >= len(data):
            return self._head(416, 0, f"bytes */{len(data)}")
        piece = data[first : last + 1]
        self._head(206, len(piece), f"bytes {first}-{first + len(piece) - 1}/{len(data)}")
        return self._body(piece)

    def _head(self, status: int, length: int, content_range: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        for name, value in (("Content-Range", content_range), ("ETag", self.state.tag)):
            if value:
                self.send_header(name, value)
        self.end_headers()

    def _body(self, data: bytes) -> None:
        if self.state.cut_bytes is not None and len(data) > self.state.cut_bytes:
            self.wfile.write(data[: self.state.cut_bytes])
            self.close_connection = True
            return
        with contextlib.suppress(OSError):
            for at in range(0, len(data), 4096):
                time.sleep(self.state.pause_seconds)
                self.wfile.write(data[at : at + 4096])


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[ShardServer]:
    """Serve a folder on a port of this machine."""
    state = ShardServer(folder)

    server = ThreadingHTTPServer(("127.0.0.1", 0), type("_Requests", (_ShardRequests,), {"state": state}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
