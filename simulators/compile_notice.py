"""Tells users that simulators are being compiled, which takes one to three minutes at their first use on a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event

from autosync.simulators.jit import KEPT

COMPILING = "compiling simulators: once on this machine, one to three minutes"
COMPILING_AGAIN = (
    "compiling simulators: one to three minutes, each time: nothing may be kept (NUMBA_CACHE_DIR names a folder)"
)


class _First(event.Listener):
    """Notices the first compilation. Loading from numba's cache does not count."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._has_told = False

    def on_start(self, _: Any) -> None:
        if not self._has_told:
            self._has_told = True
            self._tell()

    def on_end(self, _: Any) -> None:
        pass


@contextmanager
def compiling_is_told(tell: Callable[[str], None]) -> Iterator[None]:
    """Within this context, call `tell` once, before the first compilation; never if all functions are in the cache."""
    words = COMPILING if KEPT.is_enabled else COMPILING_AGAIN
    with event.install_listener("numba:compile", _First(lambda: tell(words))):
        yield
