"""Lets torch's threads finish before a script's process groups end.

A thread of gloo frees each sum that is done, and needs the interpreter's lock for it. If the last object that holds the
group goes at that moment, torch waits for the thread and keeps the lock, so the rank stands still for ever
(pytorch#56297). It hits short scripts whose last function destroys the group and returns: their models go with it, and
their wrappers hold the group.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from typing import Any

from torch.distributed import distributed_c10d

from autosync.script.process_group import put

NAME = "destroy_process_group"
PAUSE_SECONDS = 0.05
"""The time that threads have the interpreter's lock for themselves. They need far less."""


@contextlib.contextmanager
def unhurried_group_end() -> Iterator[None]:
    """Have torch's `destroy_process_group` give way to other threads first."""
    stock = distributed_c10d.destroy_process_group

    @functools.wraps(stock)
    def destroy_process_group(*arguments: Any, **options: Any) -> None:
        time.sleep(PAUSE_SECONDS)
        stock(*arguments, **options)

    try:
        put(NAME, destroy_process_group)
        yield
    finally:
        put(NAME, stock)
