"""Runs functions that numba would compile, in Python: for the first calls on a machine, while they are compiled.

The results are the same to the last bit. Python reads elements of arrays slowly, so a function gets lists of numbers
and of rows instead, which are copied back into the arrays at its end.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Sequence
from types import FunctionType
from typing import Any, cast

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_twins: dict[FunctionType, FunctionType] = {}
_rows: dict[np.dtype[Any], type] = {}


def twin_of(function: FunctionType) -> FunctionType:
    """Return the function as it runs in Python, with compiled functions that it calls replaced by their own twins."""
    known = _twins.get(function)
    if known is not None:
        return known
    names = dict(function.__globals__)
    twin = _twins[function] = FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    for name in function.__code__.co_names:
        called = getattr(names.get(name), "py_func", None)
        if called is not None:
            names[name] = twin_of(called)
    return twin


def code_size(function: FunctionType) -> int:
    """Return the size of the code of a function and of all that it calls."""
    seen, rest = {function}, [function]
    while rest:
        one = rest.pop()
        called = (getattr(one.__globals__.get(name), "py_func", None) for name in one.__code__.co_names)
        new = {other for other in called if other is not None} - seen
        seen |= new
        rest += new
    return sum(len(one.__code__.co_code) for one in seen)


def run_on_arrays(function: FunctionType, arguments: Sequence[Any]) -> Any:
    """Run a function on its arrays."""
    with np.errstate(all="ignore"):
        return twin_of(function)(*[_with_fields(one) for one in arguments])


def run_on_lists(function: FunctionType, arguments: Sequence[Any]) -> Any:
    """Run a function on lists instead of arrays, and copy what it wrote back into these.

    It may read and write elements, and fields of records; no slices. Arrays must not overlap, unless they are equal.
    If it raises an error, the arrays are as before.
    """
    lists = _Lists()
    found = twin_of(function)(*[lists.of(one) for one in arguments])
    lists.copy_back()
    return found


def _with_fields(value: Any) -> Any:
    """Return an argument whose records have their fields as attributes, as in compiled functions."""
    if isinstance(value, np.ndarray) and value.dtype.names:
        return value.view(np.recarray)
    if isinstance(value, tuple):
        fields = [_with_fields(one) for one in value]
        return type(value)(*fields) if hasattr(value, "_fields") else tuple(fields)
    return value


class _Lists:
    """The lists in place of arrays. An array that comes twice has one list."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[Array, Any]] = {}

    def of(self, value: Any) -> Any:
        """Return an argument with lists instead of arrays: also those within named tuples."""
        if isinstance(value, np.ndarray):
            key = (value.__array_interface__["data"][0], value.shape, value.dtype)
            if key not in self._known:
                self._known[key] = (value, _listed(value))
            return self._known[key][1]
        if isinstance(value, tuple):
            fields = [self.of(one) for one in value]
            return type(value)(*fields) if hasattr(value, "_fields") else tuple(fields)
        return value.item() if isinstance(value, np.generic) else value

    def copy_back(self) -> None:
        for array, found in self._known.values():
            if not array.flags.writeable or array.size == 0:
                continue
            if array.dtype.names:
                for name in array.dtype.names:
                    array[name] = list(map(operator.attrgetter(name), found))
            elif array.ndim == 1:
                array[:] = found
            else:
                array[...] = np.array(found.elements, array.dtype).reshape(array.shape)


class _Grid:
    """An array of several axes, as a list of its elements."""

    def __init__(self, array: Array) -> None:
        self.elements: list[Any] = array.ravel().tolist()
        self._length = len(array)
        self._widths = [int(np.prod(array.shape[axis + 1 :])) for axis in range(array.ndim)]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: tuple[int, ...]) -> Any:
        return self.elements[sum(map(operator.mul, place, self._widths))]

    def __setitem__(self, place: tuple[int, ...], value: Any) -> None:
        self.elements[sum(map(operator.mul, place, self._widths))] = value


class _Table(_Grid):
    """A grid of two axes, which are most of them: its elements are found faster."""

    def __init__(self, array: Array) -> None:
        super().__init__(array)
        self._width = array.shape[1]

    def __getitem__(self, place: tuple[int, ...]) -> Any:
        return self.elements[place[0] * self._width + place[1]]

    def __setitem__(self, place: tuple[int, ...], value: Any) -> None:
        self.elements[place[0] * self._width + place[1]] = value


def _listed(array: Array) -> Any:
    if array.dtype.names:
        return _records(array)
    if array.ndim == 1:
        return array.tolist()
    return _Table(array) if array.ndim == 2 else _Grid(array)


def _records(array: Array) -> list[Any]:
    """Return objects with the fields of records; column by column, which is faster than row by row."""
    names = cast("tuple[str, ...]", array.dtype.names)
    kind = _rows.get(array.dtype)
    if kind is None:
        kind = _rows[array.dtype] = type("Row", (), {"__slots__": names})
    rows = [kind() for _ in range(len(array))]
    for name in names:
        enter = vars(kind)[name].__set__
        deque(map(enter, rows, array[name].tolist()), maxlen=0)
    return rows
