"""The meeting point of a trial's ranks: a file if they share one machine, else a port that the first rank opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch.distributed as dist

from autosync.runtime.serving.rendezvous import open_store


def open_on_first_rank(rank: int) -> tuple[Any, dict[str, int]]:
    """On the first rank, open a store at a free port; return the store, which the caller must keep, and the port."""
    if rank:
        return None, {}
    store = dist.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]  # noqa: S104 - others connect from their hosts
    return store, {"port": store.port}


def rendezvous_store(place: str, *, opened: Any, num_users: int, timeout_seconds: float) -> Any:
    """Return the store at a place, a file's path or tcp://HOST:PORT; on the rank that opened it, that is `opened`."""
    if opened is not None:
        return opened
    if urlsplit(place).scheme == "tcp":
        return open_store(place, patience_seconds=timeout_seconds)
    return dist.FileStore(str(Path(place)), num_users)  # type: ignore[attr-defined]
