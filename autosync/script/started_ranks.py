"""Refuses ranks that a script starts itself, because its launcher has started them already.

The processes of `torch.multiprocessing.spawn` would train by themselves, out of the reach of what is patched here.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch.distributed as dist
import torch.multiprocessing

from autosync.errors import OperationError

NAME = "start_processes"
"""What `torch.multiprocessing.spawn` calls; Lightning calls it too."""


@contextlib.contextmanager
def refused_ranks() -> Iterator[None]:
    """Have torch refuse to start processes before the script has a process group; later ones are no ranks of it."""
    given = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE") if name in os.environ}
    # `torch.multiprocessing.spawn` is the function; its module has the same name.
    owners = (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"])
    stock: Callable[..., Any] = getattr(torch.multiprocessing, NAME)

    def start_processes(*arguments: Any, **options: Any) -> Any:
        if not dist.is_initialized():
            refuse_started(given)
        return stock(*arguments, **options)

    try:
        for owner in owners:
            setattr(owner, NAME, start_processes)
        yield
    finally:
        for owner in owners:
            setattr(owner, NAME, stock)


def refuse_started(given: Mapping[str, str]) -> None:
    """Refuse to start processes in a script that a launcher has started as a rank."""
    if "RANK" not in given or "WORLD_SIZE" not in given:
        return
    raise OperationError(
        f"the script starts processes with torch.multiprocessing, and it was started as rank {given['RANK']} of "
        f"{given['WORLD_SIZE']}: the launcher starts the ranks (call the function that trains once, with RANK and "
        'WORLD_SIZE of the environment; with Lightning strategy="ddp")'
    )
