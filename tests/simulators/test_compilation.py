"""Who waits for the compiler is told so, once, and nobody else."""

import numba

from autosync.simulators.compilation import COMPILING, compiling_is_told


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
