"""Where the ranks of a trial meet: a file where they share one machine, else a port that the first rank opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch.distributed as dist

from autosync.runtime.serving.rendezvous import open_store


def open_on_first_rank(rank: int) -> tuple[Any, dict[str, int]]:
    """On the first rank a store at a port of the system's choice, which lasts as long as it is kept, and that port."""
    if rank:
        return None, {}
    store = dist.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]  # noqa: S104 - others connect from their hosts
    return store, {"port": store.port}


def rendezvous_store(place: str, *, opened: Any, num_users: int, timeout_seconds: float) -> Any:
    """The store at a place: a file's path, or tcp://HOST:PORT, which `opened` is where this rank has opened it."""
    if opened is not None:
        return opened
    if urlsplit(place).scheme == "tcp":
        return open_store(place, patience_seconds=timeout_seconds)
    return dist.FileStore(str(Path(place)), num_users)  # type: ignore[attr-defined]
