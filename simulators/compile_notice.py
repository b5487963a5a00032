"""Compiles simulators at their first use on a machine, and tells users so while it lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event

from autosync.first_calls import FIRST_CALLS, Compiler
from autosync.simulators.kernel_compiler import compiler_if_needed, is_kept

COMPILING = "compiling simulators: once on this machine, about a minute"
COMPILING_MEANWHILE = (
    "compiling simulators in the background: once on this machine, about a minute; "
    "until then, a prediction takes some seconds"
)
WAITING = "waiting for the compiler, because what comes next takes too long without it"
COMPILING_AGAIN = (
    "compiling simulators: one to three minutes, each time: nothing may be kept (NUMBA_CACHE_DIR names a folder)"
)


class _First(event.Listener):
    """Notices the first compilation in this process. Loading from numba's cache does not count."""

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
def compiling_is_told(tell: Callable[[str], None], *, meanwhile: bool = False) -> Iterator[None]:
    """Within this context, simulators are compiled by a process of their own at the first prediction on a machine.

    `tell` is called once, before that; never if all functions are in the cache. With `meanwhile`, Python makes
    the first predictions. Without, they wait, so that no measurement shares processors with a compiler.
    """

    def start() -> Compiler | None:
        compiler = compiler_if_needed(meanwhile=meanwhile)
        if compiler is not None:
            tell(COMPILING_MEANWHILE if meanwhile else COMPILING)
        return compiler

    listener = _First(lambda: tell(COMPILING if is_kept() else COMPILING_AGAIN))
    with (
        FIRST_CALLS.compiled_by(start, waits=not meanwhile, on_wait=lambda: tell(WAITING)),
        event.install_listener("numba:compile", listener),
    ):
        yield
