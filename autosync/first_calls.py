"""The first calls of compiled functions on a machine: another process compiles them, and Python runs them meanwhile.

Compiling all of them takes about a minute, and a prediction with functions that Python runs takes seconds.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any, Protocol

from autosync.interpreted import code_size, run_on_arrays, run_on_lists

PATIENCE_SECONDS = 10.0
"""The time for which Python runs functions. A search calls so many that they take less time when they are compiled."""


class Compiler(Protocol):
    """A process that compiles all functions into the cache."""

    def poll(self) -> int | None:
        """Return None while it runs."""
        ...

    def wait(self) -> int:
        """Wait for its end."""
        ...


class FirstCalls:
    """What calls of compiled functions do while these may not be compiled yet. There is one for all: `FIRST_CALLS`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._start: Callable[[], Compiler | None] | None = None
        self._compiler: Compiler | None = None
        self._waits = False
        self._until = 0.0
        self._on_wait: Callable[[], None] = _say_nothing
        self._recorded: list[CompiledFunction] | None = None

    @contextmanager
    def compiled_by(
        self, start: Callable[[], Compiler | None], *, waits: bool, on_wait: Callable[[], None]
    ) -> Iterator[None]:
        """Within this context, the first call of a compiled function starts the compiler; None if all are compiled.

        With `waits`, calls wait for it. Otherwise Python runs functions until it has ended, also after this context,
        but not for longer than `PATIENCE_SECONDS`. `on_wait` is called before a call waits all the same.
        """
        with self._lock:
            self._start, self._waits, self._on_wait = start, waits, on_wait
        try:
            yield
        finally:
            with self._lock:
                self._start = None

    @contextmanager
    def recording(self) -> Iterator[list[CompiledFunction]]:
        """Within this context, Python runs all functions; the list gets each of them that is called."""
        self._recorded = []
        try:
            yield self._recorded
        finally:
            self._recorded = None

    def record(self, function: CompiledFunction) -> bool:
        """Enter a function that is called; return whether it is new."""
        if self._recorded is None or function in self._recorded:
            return False
        self._recorded.append(function)
        return True

    def are_interpreted(self) -> bool:
        """Whether Python should run functions now."""
        if self._recorded is not None:
            return True
        if self._start is None and self._compiler is None:
            return False
        with self._lock:
            if self._start is not None:
                start, self._start = self._start, None
                self._compiler = self._compiler or start()
                self._until = time.monotonic() + PATIENCE_SECONDS
            if self._compiler is not None and self._waits:
                self._compiler.wait()
            if self._compiler is not None and self._compiler.poll() is not None:
                self._compiler = None
            is_late = self._compiler is not None and time.monotonic() > self._until
        if is_late:
            self.wait()
        return self._compiler is not None

    def wait(self) -> None:
        """Wait until functions are compiled, for work that takes too long in Python."""
        if self._recorded is not None or (self._start is not None and not self.are_interpreted()):
            return
        with self._lock:
            if self._compiler is not None:
                self._on_wait()
                self._compiler.wait()
                self._compiler = None


def _say_nothing() -> None:
    pass


FIRST_CALLS = FirstCalls()


class CompiledFunction:
    """A function that Python calls and numba compiles. Until then, Python runs it: `on_lists` or on its arrays."""

    def __init__(self, dispatcher: Any, *, on_lists: bool) -> None:
        self._dispatcher = dispatcher
        self._function: FunctionType = dispatcher.py_func
        self._on_lists = on_lists
        self._types: tuple[Any, ...] | None = None
        self.__doc__, self.__name__ = self._function.__doc__, self._function.__name__

    def __call__(self, *arguments: Any) -> Any:
        if FIRST_CALLS.are_interpreted():
            if FIRST_CALLS.record(self):
                self._types = _types_of(arguments)
            try:
                return self._interpreted(arguments)
            except ZeroDivisionError:
                # Compiled, a division by zero is infinite.
                FIRST_CALLS.wait()
        return self._dispatcher(*arguments)

    @property
    def code_size(self) -> int:
        """The size of its code and of all that it calls: its time to compile grows with it."""
        return code_size(self._function)

    def compile(self) -> None:
        """Compile the function for the types of its recorded call, into the cache."""
        assert self._types is not None, "it was recorded"
        self._dispatcher.compile(self._types)

    def _interpreted(self, arguments: Sequence[Any]) -> Any:
        run = run_on_lists if self._on_lists else run_on_arrays
        return run(self._function, arguments)


def _types_of(arguments: Sequence[Any]) -> tuple[Any, ...]:
    import numba

    typeof: Any = numba.typeof
    return tuple([typeof(one) for one in arguments])


def start_compiler(command: Sequence[str]) -> Compiler:
    """Start a process that goes on if this one ends, so that the next command finds its functions compiled."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
