"""The user's declarations of a loop: its tables, its records and its function of one record."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from types import FunctionType
from typing import Any, Literal, get_args

import numpy as np

from autosync.disk_errors import open_input
from autosync.errors import InputError, Problem

Updates = Literal["ordered", "commutative", "buffered"]
Order = Literal["any", "given"]
Tables = dict[str, np.ndarray[Any, Any]]
Records = np.ndarray[Any, Any]

_FIELD_KINDS = "biuf"
_MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """An array of rows that the loop reads and writes: `table[row]`, `table[row, column]`.

    `initial` is one number, or a function of a `numpy.random.Generator` that returns the array. `updates` is the
    meaning of writes:

    - "ordered": writes take effect in order, as in Python;
    - "commutative": the loop only adds to rows (`table[row] += value`) and never reads them, so any order is right;
    - "buffered": the loop reads rows and adds to them. A rank reads the state of the last merge plus its own additions.
      Each rank merges after every `merge_every` of its records.
    """

    shape: tuple[int, ...]
    dtype: str = "float64"
    initial: float | Callable[[np.random.Generator], Any] = 0.0
    updates: Updates = "ordered"
    merge_every: int = 1000

    def __post_init__(self) -> None:
        problems = list(_table_problems(self))
        if problems:
            raise InputError(problems)

    @property
    def row_bytes(self) -> int:
        """The size of one row in bytes."""
        return math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize


def _table_problems(table: Table) -> Iterator[Problem]:
    shape = table.shape
    given: Any = shape
    are_sizes = isinstance(given, tuple) and all(isinstance(n, int) and not isinstance(n, bool) for n in given)
    if not are_sizes or not 1 <= len(shape) <= _MAX_DIMENSIONS or min(shape) < 1:
        rule = f"a tuple of 1 to {_MAX_DIMENSIONS} whole numbers of 1 or more"
        yield Problem(what=f"is {shape!r}", rule=rule, path=("shape",))
    try:
        is_number = np.dtype(table.dtype).kind in "iuf"
    except TypeError:
        is_number = False
    if not is_number:
        yield Problem(what=f"is {table.dtype!r}", rule="a type of numbers, such as float32", path=("dtype",))
    if table.updates not in get_args(Updates):
        yield Problem(what=f"is {table.updates!r}", rule=f"one of {', '.join(get_args(Updates))}", path=("updates",))
    every: Any = table.merge_every
    if not isinstance(every, int) or every < 1:
        yield Problem(what=f"is {every!r}", rule="a whole number of 1 or more", path=("merge_every",))
    initial: Any = table.initial
    if not callable(initial) and not isinstance(initial, int | float):
        rule = "a number, or a function of a generator"
        yield Problem(what=f"is of type {type(initial).__name__}", rule=rule, path=("initial",))


@dataclass(frozen=True, slots=True, kw_only=True)
class SerialLoop:
    """A function of one record, with its records and tables. Calling the object calls the function.

    With `order` "any", any order of the records gives a right result, as in stochastic gradient descent. With "given",
    the result must be that of the records in their given order. `loss` computes a number from the records and tables.
    """

    function: FunctionType
    records: Any
    tables: Mapping[str, Table]
    order: Order = "any"
    loss: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def file(self) -> str:
        return self.function.__code__.co_filename

    @property
    def line(self) -> int:
        """The line of the function or of its decorator."""
        return self.function.__code__.co_firstlineno

    @property
    def record_name(self) -> str:
        """The name of the function's first parameter."""
        return self.function.__code__.co_varnames[0]

    def __call__(self, *arguments: Any) -> None:
        self.function(*arguments)

    def load_records(self) -> Records:
        """Return the records as an array with named fields. Raise InputError if they are something else."""
        given = self.records() if callable(self.records) else self.records
        if isinstance(given, str | Path):
            given = self._from_file(Path(given))
        problem = _records_problem(given)
        if problem is not None:
            raise InputError([problem]).within("records").located(self.file, self.line)
        record = plain_dtype(given.dtype)
        # For numpy, types that differ only in alignment are equal; for compilers they are not.
        return np.array(given, dtype=record).view(np.ndarray).view(record)

    def initial_tables(self, seed: int = 0) -> Tables:
        """Return new tables with their initial numbers. The same seed gives the same numbers."""
        made = {}
        for position, (name, table) in enumerate(self.tables.items()):
            initial = table.initial
            value = initial(np.random.default_rng([seed, position])) if callable(initial) else initial
            try:
                made[name] = np.array(np.broadcast_to(np.asarray(value, dtype=table.dtype), table.shape))
            except (TypeError, ValueError) as error:
                problem = Problem(what=str(error), rule=f"an array of {table.shape}", path=("tables", name, "initial"))
                raise InputError([problem]).located(self.file, self.line) from error
        return made

    def _from_file(self, path: Path) -> Any:
        try:
            with open_input(path):
                # Opening refuses a pipe, for which numpy would wait.
                pass
            # In a mapped file, the header cannot claim more bytes than the file has, and no pickle is read.
            return np.lib.format.open_memmap(path, mode="r")
        except (OSError, ValueError, OverflowError, EOFError, SyntaxError, TokenError) as error:
            words = getattr(error, "strerror", None) or str(error)
            problem = Problem(what=f"{path}: {words}", rule="a .npy file with an array of records", path=("records",))
            raise InputError([problem]).located(self.file, self.line) from error


def plain_dtype(record: np.dtype[Any]) -> np.dtype[Any]:
    """Return a type with the same fields in the machine's byte order and with the alignment of compilers."""
    fields = [(name, record[name].base.newbyteorder("="), record[name].shape) for name in record.names or ()]
    return np.dtype(fields, align=True)


def _records_problem(given: Any) -> Problem | None:
    rule = "a one-dimensional numpy array with named fields, a function that returns one, or a .npy file of one"
    if not isinstance(given, np.ndarray) or given.dtype.names is None or given.ndim != 1:
        what = f"are of type {type(given).__name__}" if not isinstance(given, np.ndarray) else f"are {given.dtype}"
        return Problem(what=what, rule=rule)
    for name in given.dtype.names:
        field = given.dtype[name]
        if field.base.kind not in _FIELD_KINDS or len(field.shape) > 1 or not name.isidentifier():
            return Problem(
                what=f"is {field}", rule="a field is a number or a vector of numbers, with a name", path=(name,)
            )
    return None


def loop(
    *,
    records: Any,
    tables: Mapping[str, Table],
    order: Order = "any",
    loss: Callable[..., Any] | None = None,
) -> Callable[[FunctionType], SerialLoop]:
    """Declare a function of one record as a serial loop over `records`. Its other parameters are the `tables`.

    `records` is an array with named fields, a function that returns such an array, or the path of a `.npy` file. `loss`
    is a function of the records and of the tables, which are passed by name.
    """

    def declare(function: FunctionType) -> SerialLoop:
        problems = list(_loop_problems(function, tables, order, loss))
        if problems:
            file, line = _place(function)
            raise InputError(problems).located(file, line)
        return SerialLoop(function=function, records=records, tables=dict(tables), order=order, loss=loss)

    return declare


def _loop_problems(function: Any, tables: Any, order: Any, loss: Any) -> Iterator[Problem]:
    if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
        rule = "@autosync.loop stands on a function written with def, without another decorator"
        yield Problem(what=f"is of type {type(function).__name__}", rule=rule)
        return
    if not isinstance(tables, Mapping) or not all(isinstance(table, Table) for table in tables.values()):
        yield Problem(what="are no tables", rule="names and autosync.Table", path=("tables",))
        return
    parameters = list(inspect.signature(function).parameters.values())
    names = [parameter.name for parameter in parameters]
    are_plain = all(one.kind is one.POSITIONAL_OR_KEYWORD and one.default is one.empty for one in parameters)
    if not are_plain or not names or set(names[1:]) != set(tables):
        rule = f"one record, then each table by its name: {', '.join(tables) or 'none'}; no defaults"
        yield Problem(what=f"the parameters are {', '.join(names) or 'none'}", rule=rule)
    if order not in get_args(Order):
        yield Problem(what=f"is {order!r}", rule=f"one of {', '.join(get_args(Order))}", path=("order",))
    if loss is not None and not callable(loss):
        yield Problem(what=f"is of type {type(loss).__name__}", rule="a function", path=("loss",))


def _place(function: Any) -> tuple[str, int]:
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    return ("<loop>", 1) if code is None else (code.co_filename, code.co_firstlineno)
