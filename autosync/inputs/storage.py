"""Opens shards: local files, HTTP servers, and whatever fsspec knows (S3, Google Cloud Storage, memory).

Nothing is read as a whole unasked: a storage gives ranges of bytes.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import stat
import time
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from autosync.errors import InputError, OperationError, Problem
from autosync.inputs.http_requests import HttpFile, Patience, host_of, missing_shard, shown_url
from autosync.near_files import missing_file

CHECK_SECONDS = 5.0
"""After so long, the next read of a file through fsspec also asks whether the file is still the same."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


class ShardFile(Protocol):
    """One file in a storage. Threads may read at the same time; a fork opens its own connections."""

    url: str
    host: str

    @property
    def num_bytes(self) -> int:
        """The size of the file."""

    @property
    def version(self) -> str:
        """A text that changes when the file changes."""

    @property
    def tells_changes(self) -> bool:
        """Whether a file of the same size would have another version."""

    @property
    def identity(self) -> str:
        """A text that no other file has, and no other version of this one."""

    def read(self, start: int, length: int) -> tuple[bytes, int]:
        """Return exactly these bytes and the number of retries; raise OperationError with file and host otherwise."""


def open_shard(url: str, patience: Patience | None = None) -> ShardFile:
    """Open a file by its path or URL. A missing file is an InputError."""
    scheme = url.partition("://")[0].lower() if _SCHEME.match(url) else "file"
    if scheme in ("http", "https"):
        return HttpFile(url, patience or Patience())
    if scheme == "file":
        return LocalFile(unquote(urlsplit(url).path) if url.lower().startswith("file://") else url)
    return FsspecFile(url)


class LocalFile:
    """A file of the operating system. It is opened for each read, so no fork shares a position or a descriptor."""

    def __init__(self, path: str) -> None:
        self.url = path
        # Files of a network disk count as this host's: the operating system hides who serves them.
        self.host = socket.gethostname()
        try:
            found = Path(path).stat()
        except FileNotFoundError as error:
            raise InputError([missing_file(path)]) from error
        except (OSError, ValueError) as error:
            raise _refused(path, getattr(error, "strerror", None) or str(error)) from error
        if not stat.S_ISREG(found.st_mode):
            raise _refused(path, "is no regular file")
        self.num_bytes = found.st_size
        self.version = f"{found.st_size}-{found.st_mtime_ns}"
        self.tells_changes = True
        self.identity = f"{Path(path).absolute()} {self.version}"

    def read(self, start: int, length: int) -> tuple[bytes, int]:
        try:
            descriptor = os.open(self.url, os.O_RDONLY | os.O_CLOEXEC)
            try:
                found = os.fstat(descriptor)
                if f"{found.st_size}-{found.st_mtime_ns}" != self.version:
                    raise changed(self, f"it had {self.num_bytes} bytes, it has {found.st_size}")
                return _whole(descriptor, self, start, length), 0
            finally:
                os.close(descriptor)
        except OSError as error:
            raise OperationError(f"{self.url}: cannot be read on {self.host}: {error.strerror}") from error


def _whole(descriptor: int, file: LocalFile, start: int, length: int) -> bytes:
    pieces = []
    while length > 0:
        piece = os.pread(descriptor, length, start)
        if not piece:
            raise OperationError(f"{file.url}: ends at byte {start}, {length} bytes early, on {file.host}")
        pieces.append(piece)
        start, length = start + len(piece), length - len(piece)
    return b"".join(pieces)


class FsspecFile:
    """A file of a file system that fsspec knows. fsspec and its plugin have their own retries.

    A read does not tell whether the file is still the same, so its version is asked for now and then.
    """

    def __init__(self, url: str) -> None:
        self.url = shown_url(url)
        self.host = host_of(url)
        self._whole_url = url
        self._opened: tuple[int, Any, str] | None = None
        self._next_check = 0.0
        try:
            system, _ = self._system()
            self.host = _endpoint_of(system) or self.host
            self.num_bytes, self.version = self._facts()
            self.tells_changes = not self.version.endswith("-")
            self.identity = f"{hashlib.sha256(url.encode()).hexdigest()} {self.version}"
        except FileNotFoundError as error:
            raise missing_shard(self.url, self.host) from error
        except ImportError as error:
            rule = "fsspec needs the package of this storage"
            raise InputError([Problem(what=f"cannot be opened: {error}", rule=rule, file=self.url)]) from error
        except InputError:
            raise
        except Exception as error:
            raise OperationError(f"{self.url}: {self.host} refused it: {error}") from error

    def read(self, start: int, length: int) -> tuple[bytes, int]:
        try:
            system, path = self._system()
            data = bytes(system.cat_file(path, start=start, end=start + length))
            is_same = len(data) == length and time.monotonic() < self._next_check
            version = self.version if is_same else self._facts()[1]
        # A plugin raises what its library does, which may be of any class.
        except Exception as error:
            raise OperationError(
                f"{self.url}: {self.host} refused bytes {start} to {start + length}: {error}"
            ) from error
        if version != self.version:
            raise changed(self, f"its version was {self.version}, it is {version}")
        if len(data) != length:
            raise OperationError(f"{self.url}: {self.host} gave {len(data)} of {length} bytes from byte {start}")
        return data, 0

    def _facts(self) -> tuple[int, str]:
        """Ask for the size and the version of the file."""
        system, path = self._system()
        system.invalidate_cache()
        found = system.info(path)
        size = found.get("size")
        if not isinstance(size, int) or found.get("type") == "directory":
            raise _refused(self.url, "is no file of a known size")
        mark = next((found[name] for name in ("ETag", "etag", "md5Hash", "mtime", "created") if found.get(name)), "")
        self._next_check = time.monotonic() + CHECK_SECONDS
        return size, f"{size}-{mark}"

    def _system(self) -> tuple[Any, str]:
        """Return the file system, a new one after a fork, and the path in it."""
        if self._opened is None or self._opened[0] != os.getpid():
            from fsspec.core import url_to_fs

            system, path = url_to_fs(self._whole_url)
            self._opened = os.getpid(), system, path
        return self._opened[1], self._opened[2]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}


def _endpoint_of(system: Any) -> str:
    """Return the host that serves an object store, where the plugin knows it; the URL has only the bucket."""
    endpoint = getattr(system, "endpoint_url", None)
    return urlsplit(endpoint).netloc if isinstance(endpoint, str) else ""


def changed(file: ShardFile, how: str) -> OperationError:
    """Return the error for a file that is no longer what it was when it was opened."""
    return OperationError(f"{file.url}: the file on {file.host} changed while it was in use: {how}")


def _refused(path: str, what: str) -> InputError:
    return InputError([Problem(what=what, rule="a shard is a readable file", file=path)])
