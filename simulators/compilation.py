"""Telling that simulators are being compiled: that takes most of a minute the first time, and nothing from then on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event

COMPILING = "compiling simulators: once on this machine, up to a minute"


class _First(event.Listener):
    """Hears of what begins to be compiled; what is loaded from numba's cache is not."""

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
    """Within it `tell` is called once, when the first function is about to be compiled; never where all have been."""
    with event.install_listener("numba:compile", _First(lambda: tell(COMPILING))):
        yield
