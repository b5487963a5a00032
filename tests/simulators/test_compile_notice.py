"""Who waits for the compiler is told so, once, and nobody else."""

import numba
import pytest

from autosync.compiled_cache import CompiledCache
from autosync.simulators import compile_notice
from autosync.simulators.compile_notice import COMPILING, COMPILING_AGAIN, compiling_is_told


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

    monkeypatch.setattr(compile_notice, "KEPT", CompiledCache(is_enabled=False))
    told: list[str] = []
    with compiling_is_told(told.append):
        assert one_less(1) == 0
    assert told == [COMPILING_AGAIN]
