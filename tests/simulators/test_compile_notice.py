"""Users are told once that simulators are compiled, and only if they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numba
import numpy as np
import pytest

from autosync import first_calls
from autosync.compiled_cache import CompiledCache
from autosync.simulators import jit, kernel_compiler
from autosync.simulators.compile_notice import (
    COMPILING,
    COMPILING_AGAIN,
    COMPILING_MEANWHILE,
    WAITING,
    compiling_is_told,
)
from autosync.simulators.shared.arrays import Floats


class Compiling:
    """A compiler that ends when somebody waits."""

    def __init__(self, result: int = 0) -> None:
        self._result = result
        self._has_ended = False

    def poll(self) -> int | None:
        return self._result if self._has_ended else None

    def wait(self) -> int:
        self._has_ended = True
        return self._result


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[tuple[str, ...]]]:
    """A machine on which nothing is compiled yet; the commands that would be started."""
    started: list[tuple[str, ...]] = []

    def start(command: tuple[str, ...]) -> Compiling:
        started.append(tuple(command[3:]))
        return Compiling()

    monkeypatch.setattr(jit, "KEPT", CompiledCache(is_enabled=True, folder=tmp_path))
    monkeypatch.setattr(first_calls, "start_compiler", start)
    yield started
    first_calls.FIRST_CALLS.wait()


def _twice(numbers: Floats) -> float:
    return float(numbers[0] * 2.0)


def test_the_first_call_starts_the_compiler_and_tells(cold: list[tuple[str, ...]]) -> None:
    told, twice = list[str](), jit.borrows_elements(_twice)
    with compiling_is_told(told.append, meanwhile=True):
        assert told == []
        for number in (2.0, 3.0):
            assert twice(np.full(1, number)) == 2.0 * number
    assert (told, cold) == ([COMPILING_MEANWHILE], [("autosync.simulators.kernel_compiler", "--behind-others")])


def test_what_python_does_not_do_waits_and_tells(cold: list[tuple[str, ...]]) -> None:
    told = list[str]()
    with compiling_is_told(told.append, meanwhile=True):
        first_calls.FIRST_CALLS.wait()
    assert told == [COMPILING_MEANWHILE, WAITING]


def test_before_measurements_the_first_call_waits(cold: list[tuple[str, ...]]) -> None:
    told = list[str]()
    with compiling_is_told(told.append):
        assert not first_calls.FIRST_CALLS.are_interpreted()
    assert (told, cold) == ([COMPILING], [("autosync.simulators.kernel_compiler",)])


def test_only_what_is_compiled_is_told_and_only_once() -> None:
    @numba.njit
    def one_more(number: int) -> int:
        return number + 1

    @numba.njit
    def two_more(number: int) -> int:
        return int(one_more(one_more(number)))

    told: list[str] = []
    with compiling_is_told(told.append):
        assert told == []
        assert two_more(1) == 3
        assert two_more(1.5) == 3
    with compiling_is_told(told.append):
        assert two_more(2) == 4
    assert told == [COMPILING]


def test_where_nothing_is_enabled_that_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    @numba.njit
    def one_less(number: int) -> int:
        return number - 1

    monkeypatch.setattr(jit, "KEPT", CompiledCache(is_enabled=False))
    assert kernel_compiler.compiler_if_needed(meanwhile=True) is None
    told: list[str] = []
    with compiling_is_told(told.append):
        assert one_less(1) == 0
    assert told == [COMPILING_AGAIN]
