"""Python runs a compiled function on lists or on arrays, with the results that numba gives."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.interpreted import code_size, run_on_arrays, run_on_lists, twin_of

Array = npt.NDArray[Any]
RECORD = np.dtype([("count", np.int64), ("seconds", np.float64), ("is_open", np.bool_)])
SINGLE = np.dtype([("count", np.int64)])


class Tables(NamedTuple):
    records: Array
    singles: Array
    numbers: Array
    same: Array
    table: Array
    cube: Array
    limit: float


@numba.njit
def _add(tables: Tables, place: int) -> float:
    one = tables.records[place]
    one.count += 1
    one.seconds = one.seconds * tables.limit + tables.numbers[place]
    one.is_open = one.seconds > tables.limit
    tables.singles[place].count = one.count
    return float(one.seconds)


@numba.njit
def _work(tables: Tables) -> float:
    total = 0.0
    for place in range(len(tables.records)):
        total += _add(tables, place)
        tables.numbers[place] = total
        tables.table[place, 1] += tables.same[place]
        tables.cube[place, 0, 2] = -tables.table[place, 1]
    return total / len(tables.cube)


def _tables(values: list[float], limit: float) -> Tables:
    count = len(values)
    records = np.zeros(count, RECORD)
    records["seconds"] = values
    numbers = np.array(values)
    table, cube = np.arange(3.0 * count).reshape(count, 3), np.zeros((count, 2, 3))
    return Tables(records, np.zeros(count, SINGLE), numbers, numbers, table, cube, limit)


FLOATS = st.floats(-1e9, 1e9)


@given(st.lists(FLOATS, min_size=1, max_size=8), FLOATS)
@pytest.mark.parametrize("run", [run_on_lists, run_on_arrays])
def test_python_has_the_results_of_numba(run: Any, values: list[float], limit: float) -> None:
    ours, theirs = _tables(values, limit), _tables(values, limit)
    assert run(_work.py_func, (ours,)) == _work(theirs)
    for one, other in zip(ours[:-1], theirs[:-1], strict=True):
        assert one.tobytes() == other.tobytes()


def test_a_twin_calls_twins_and_is_made_once() -> None:
    assert twin_of(_work.py_func) is twin_of(_work.py_func)
    assert twin_of(_work.py_func).__globals__["_add"] is twin_of(_add.py_func)
    assert code_size(_work.py_func) == code_size(_add.py_func) + len(_work.py_func.__code__.co_code)


def test_after_an_error_arrays_are_as_before() -> None:
    def broken(numbers: Array) -> None:
        numbers[0] = 7.0
        raise ZeroDivisionError

    numbers = np.zeros(2)
    with pytest.raises(ZeroDivisionError):
        run_on_lists(broken, (numbers,))
    assert numbers.tolist() == [0.0, 0.0]


def test_an_array_that_is_not_writable_is_read() -> None:
    numbers = np.arange(3.0)
    numbers.flags.writeable = False
    assert run_on_lists(lambda found: found[2], (numbers,)) == 2.0  # type: ignore[arg-type]
