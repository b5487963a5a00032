"""Finds the store of the workers' process group for a rank that only serves."""

from __future__ import annotations

import datetime as dt
import os
from typing import Any
from urllib.parse import urlsplit

import torch.distributed as dist

from autosync.errors import InputError, OperationError
from autosync.runtime.wire.links import said

START_SECONDS = 1800.0
"""The time that a server waits for the workers: as long as torch's process groups wait."""

_RULE = "env://, tcp://HOST:PORT or file:///PATH"


def resolve(url: str) -> str:
    """Return the address of a rendezvous, completed from the environment: tcp://HOST:PORT or file:///PATH."""
    parts = urlsplit(url)
    if parts.scheme == "env":
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
        if missing:
            raise InputError(
                f"{' and '.join(missing)} not set in the environment",
                rule="a rendezvous of env:// is where the workers' environment says",
                hint="set them as the workers have them, or give --rendezvous tcp://HOST:PORT",
            )
        address = os.environ["MASTER_ADDR"]
        host = f"[{address}]" if ":" in address else address
        return resolve(f"tcp://{host}:{os.environ['MASTER_PORT']}")
    if parts.scheme == "file" and parts.path and not parts.netloc:
        return url
    if parts.scheme == "tcp" and parts.hostname and _port(url):
        return url
    raise InputError(f"{url!r} is no rendezvous", rule=_RULE)


def open_store(place: str, *, patience_seconds: float = START_SECONDS) -> Any:
    """Wait for the store at a resolved address, and return it."""
    parts = urlsplit(place)
    if parts.scheme == "file":
        # The number of processes that use the file is not known here; the process that made it removes it.
        return dist.FileStore(parts.path, -1)  # type: ignore[attr-defined]
    timeout = dt.timedelta(seconds=patience_seconds)
    host, port = parts.hostname, _port(place)
    assert host is not None, "a resolved place has a host"
    assert port is not None, "and a port"
    try:
        return dist.TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)  # type: ignore[attr-defined]
    except RuntimeError as error:
        raise OperationError(f"no workers at {place} within {patience_seconds:g} s: {said(error)}") from error


def _port(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError:
        return None
