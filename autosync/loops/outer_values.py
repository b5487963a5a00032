"""The values outside of a loop's function that it uses. Its numbers are constants of a run.

The analysis reads them, numba compiles them in, and each rank has its own from loading the file. So user code that
changes one while a loop runs would change the result of some ranks and not of others.
"""

from __future__ import annotations

import contextlib
import dis
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import numpy as np

from autosync.errors import InputError
from autosync.loops.declarations import SerialLoop

NUMBERS = (int, float, bool, np.integer, np.floating)


def outer_values(function: FunctionType) -> dict[str, object]:
    """Return the values of all names around a function: those of its file, and those of functions around it."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    # A cell that is still empty belongs to a name that is set later. Such a name is refused as unknown.
    return {**function.__globals__, **{name: _contents(cell) for name, cell in cells}}


def numbers_of(function: FunctionType) -> dict[str, str]:
    """Return the outer numbers that a function uses, as text. Other values may have memory addresses in their text."""
    code, outer = function.__code__, outer_values(function)
    # `co_names` also has the names of fields.
    used = {*code.co_freevars, *(one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL")}
    return {name: repr(outer[name]) for name in sorted(used) if isinstance(outer.get(name), NUMBERS)}


def different_numbers(first: dict[str, str], second: dict[str, str]) -> list[tuple[str, str, str]]:
    """Return the numbers that differ, as name, first text and second text."""
    names = sorted(first.keys() | second.keys())
    texts = [(name, first.get(name, "no number"), second.get(name, "no number")) for name in names]
    return [(name, one, other) for name, one, other in texts if one != other]


@contextlib.contextmanager
def keeping_numbers(loop: SerialLoop, doing: str) -> Iterator[None]:
    """Run a block of the user's code, and refuse it if it changes a number of the loop. `doing` names the call."""
    before = numbers_of(loop.function)
    yield
    for name, old, new in different_numbers(before, numbers_of(loop.function)):
        raise InputError(
            f"{doing} changes {name} from {old} to {new}",
            rule=f"a number of the file that {loop.name}() uses stays the same while the loop runs",
            hint="a number that changes can be a field of the records, which the loop assigns",
        ).located(loop.file, loop.line)


def _contents(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return None
