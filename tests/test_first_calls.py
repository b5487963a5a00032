"""Python runs functions while another process compiles them; then the compiled ones are called."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numba
import numpy as np
import pytest

from autosync import first_calls
from autosync.first_calls import CompiledFunction, FirstCalls

# During tests another function stands in its place, so that none of them starts a compiler.
START = first_calls.start_compiler


class Compiling:
    """A compiler that ends when it is told so, or when somebody waits."""

    def __init__(self) -> None:
        self.has_ended = False

    def poll(self) -> int | None:
        return 0 if self.has_ended else None

    def wait(self) -> int:
        self.has_ended = True
        return 0


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[FirstCalls]:
    found = FirstCalls()
    monkeypatch.setattr(first_calls, "FIRST_CALLS", found)
    return found


def halved(on_lists: bool = True) -> CompiledFunction:
    @numba.njit(error_model="numpy")
    def half(numbers, by):
        numbers[0] /= by
        return numbers[0]

    return CompiledFunction(half, on_lists=on_lists)


def is_compiled(function: CompiledFunction) -> bool:
    return bool(function._dispatcher.signatures)


@pytest.mark.parametrize("on_lists", [False, True])
def test_python_runs_a_function_until_the_compiler_has_ended(calls: FirstCalls, on_lists: bool) -> None:
    compiler, half = Compiling(), halved(on_lists)
    with calls.compiled_by(lambda: compiler, waits=False, on_wait=lambda: None):
        assert half(np.full(1, 8.0), 2.0) == 4.0
    numbers = np.full(1, 8.0)
    assert half(numbers, 4.0) == 2.0
    assert numbers[0] == 2.0
    assert not is_compiled(half)
    compiler.has_ended = True
    assert half(np.full(1, 8.0), 2.0) == 4.0
    assert is_compiled(half)


def test_nothing_starts_before_a_call_and_outside_of_the_context(calls: FirstCalls) -> None:
    started: list[Compiling] = []

    def start() -> Compiling:
        started.append(Compiling())
        return started[-1]

    with calls.compiled_by(start, waits=False, on_wait=lambda: None):
        pass
    half = halved()
    half(np.ones(1), 2.0)
    assert (started, is_compiled(half)) == ([], True)
    with calls.compiled_by(start, waits=False, on_wait=lambda: None):
        half(np.ones(1), 2.0)
        half(np.ones(1), 2.0)
    assert len(started) == 1


def test_where_calls_wait_none_is_run_by_python(calls: FirstCalls) -> None:
    compiler, half = Compiling(), halved()
    with calls.compiled_by(lambda: compiler, waits=True, on_wait=lambda: None):
        assert half(np.full(1, 8.0), 2.0) == 4.0
    assert compiler.has_ended
    assert is_compiled(half)


def test_too_much_work_waits_and_tells(calls: FirstCalls) -> None:
    compiler, told = Compiling(), list[str]()
    calls.wait()
    with calls.compiled_by(lambda: compiler, waits=False, on_wait=lambda: told.append("waits")):
        calls.wait()
        calls.wait()
    assert (compiler.has_ended, told) == (True, ["waits"])


def test_after_some_time_python_runs_no_more_functions(calls: FirstCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, told, half = Compiling(), list[str](), halved()
    monkeypatch.setattr(first_calls, "PATIENCE_SECONDS", -1.0)
    with calls.compiled_by(lambda: compiler, waits=False, on_wait=lambda: told.append("waits")):
        half(np.ones(1), 2.0)
    assert (compiler.has_ended, is_compiled(half), told) == (True, True, ["waits"])


def test_a_division_by_zero_is_infinite_as_in_compiled_functions(calls: FirstCalls) -> None:
    compiler, half, numbers = Compiling(), halved(), np.ones(1)
    with calls.compiled_by(lambda: compiler, waits=False, on_wait=lambda: None):
        assert half(numbers, 0.0) == np.inf
    assert compiler.has_ended


def test_if_all_is_compiled_nothing_is_run_by_python(calls: FirstCalls) -> None:
    half = halved()
    with calls.compiled_by(lambda: None, waits=False, on_wait=lambda: None):
        assert half(np.full(1, 8.0), 2.0) == 4.0
    assert is_compiled(half)


def test_recorded_functions_can_be_compiled_without_a_call(calls: FirstCalls) -> None:
    half, other = halved(), halved()
    with calls.recording() as found:
        half(np.ones(1), 2.0)
        half(np.ones(1), 2.0)
        calls.wait()
    assert found == [half]
    assert half.code_size > 0
    half.compile()
    assert (is_compiled(half), is_compiled(other)) == (True, False)


def test_the_compiler_is_a_process_of_its_own() -> None:
    process = START((sys.executable, "-c", "raise SystemExit(3)"))
    assert process.wait() == 3
    assert process.poll() == 3
