"""Runs a loop's function over records, compiled by numba if possible, else in Python."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np

from autosync.loops.declarations import Records, SerialLoop

RunRecords = Callable[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPass:
    """A way to run the function over records in their order. If it is not compiled, `why_not` gives the reason."""

    loop: SerialLoop
    run_records: RunRecords
    is_compiled: bool
    why_not: str = ""

    def run(self, records: Records, tables: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Run the function on each record. It changes the tables and fields of the records."""
        names = self.loop.function.__code__.co_varnames[1 : 1 + len(self.loop.tables)]
        self.run_records(records, *(tables[name] for name in names))


def record_pass(loop: SerialLoop, record: np.dtype[Any], *, compiled: bool, checks_bounds: bool = True) -> RecordPass:
    """Return the compiled way if `compiled` asks for it and numba can compile the function, else Python's."""
    if not compiled:
        return _interpreted(loop, record)
    import numba

    run_records = _compiled(loop.function, checks_bounds=checks_bounds)
    made = RecordPass(loop=loop, run_records=run_records, is_compiled=True)
    try:
        made.run(np.empty(0, dtype=record), {name: np.zeros(t.shape, t.dtype) for name, t in loop.tables.items()})
    except numba.core.errors.NumbaError as error:
        return _interpreted(loop, record, why_not=_first_words(error))
    return made


@functools.cache
def _compiled(function: FunctionType, *, checks_bounds: bool) -> RunRecords:
    """Return the function within a loop over records. numba compiles it for the types of its first call."""
    import numba

    body = numba.njit(error_model="numpy", boundscheck=checks_bounds)(function)

    def run_records(records, *tables):  # type: ignore[no-untyped-def]
        for position in range(len(records)):
            body(records[position], *tables)

    compiled: RunRecords = numba.njit(run_records)
    return compiled


def _interpreted(loop: SerialLoop, record: np.dtype[Any], why_not: str = "") -> RecordPass:
    view = _view_type(record)
    function: FunctionType = loop.function

    def run_records(records: Records, *tables: np.ndarray[Any, Any]) -> None:
        for position in range(len(records)):
            function(view(records[position]), *tables)

    return RecordPass(loop=loop, run_records=run_records, is_compiled=False, why_not=why_not)


def _view_type(record: np.dtype[Any]) -> Any:
    """Return a class of records whose attributes are the fields. numpy's own hides fields called `item` or `size`."""

    def field(name: str) -> property:
        return property(lambda self: self._row[name], lambda self, value: self._row.__setitem__(name, value))

    def begin(self: Any, row: Any) -> None:
        self._row = row

    def get(self: Any, name: str) -> Any:
        return self._row[name]

    members: dict[str, Any] = {name: field(name) for name in record.names or ()}
    return type("LoopRecord", (), {**members, "__slots__": ("_row",), "__init__": begin, "__getitem__": get})


def _first_words(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if "nopython" not in line), lines[0] if lines else type(error).__name__)
    return told[:200]
