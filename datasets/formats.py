"""The file formats of records: Parquet, CSV and JSON lines, written and read back without loss.

Parquet and CSV have one row for each record, with the columns of `table`. JSON lines hold each record as it is. Each
record has a checksum, so a record that a disk, a spreadsheet or a broken line has changed is refused.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO, get_args

from autosync import jsonio
from autosync.datasets.mistake_limit import MistakeLimit, Reject
from autosync.datasets.parquet_rows import MAX_GROUP_BYTES, TooLargeError, rows_of
from autosync.datasets.schema import Record, record_from_signed, signed
from autosync.datasets.table import COLUMNS, NEEDED_COLUMNS, ColumnKind, record_of, row_of
from autosync.disk_errors import open_input
from autosync.errors import DocumentError, Problem, first_problems
from autosync.jsonio import LINE_RULE, MAX_EMPTY_LINES, MAX_LINE_BYTES, MAX_LINE_VALUES, lines_of

FileFormat = Literal["parquet", "csv", "jsonl"]
FORMATS: tuple[FileFormat, ...] = get_args(FileFormat)

_ROWS_PER_GROUP = 1000
_BYTES_PER_GROUP = MAX_GROUP_BYTES // 4
"""Characters are counted, and each may take four bytes."""

_FORMULA = re.compile("'*[=+\\-@\t\r\n]")
"""Text that a spreadsheet would run as a formula. Such a cell gets one more leading quotation mark, which the reader
removes."""


def write_jsonl(records: Iterable[Record], file: BinaryIO) -> None:
    """Write one record on each line."""
    file.writelines(one_line(signed(record)).encode() + b"\n" for record in records)


def read_jsonl(path: Path, reject: Reject) -> Iterator[Record]:
    """Yield the records of a file of JSON lines."""
    limit = MistakeLimit(path, reject)
    with open_input(path) as file:
        for number, line in enumerate(_bounded_lines(file, path), start=1):
            if not line.strip():
                continue
            try:
                plain = jsonio.parse(line)
            except ValueError as error:
                what = f"no JSON: {error}" if line.endswith(b"\n") else "the last line breaks off"
                limit.reject(_unreadable(what, "one record a line", path, number))
                continue
            try:
                record = record_from_signed(plain, file=str(path), line=number)
            except DocumentError as error:
                limit.reject(error)
            else:
                limit.count_record()
                yield record


def _bounded_lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield the lines of a file; raise at a line that is too long, and at too many empty lines."""
    number = 0
    try:
        for line in lines_of(file):
            number += 1
            yield line
    except ValueError as error:
        raise _unreadable(str(error), LINE_RULE, path, number + 1) from error


def write_csv(records: Iterable[Record], file: BinaryIO) -> None:
    """Write a header and one row for each record."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    try:
        writer = csv.writer(text)
        writer.writerow(COLUMNS)
        for record in records:
            row = row_of(record)
            writer.writerow(_cell(row[name], kind) for name, kind in COLUMNS.items())
    finally:
        # The caller closes the file.
        text.detach()


def read_csv(path: Path, reject: Reject) -> Iterator[Record]:
    """Yield the records of a CSV file, with columns in any order. The rows from a broken quote on cannot be read.

    A file without the necessary columns is refused, because it cannot hold records.
    """
    limit = MistakeLimit(path, reject)
    # Spreadsheets put a byte order mark before UTF-8 text.
    with io.TextIOWrapper(open_input(path), "utf-8-sig", "surrogateescape", newline="") as file, _wide_cells():
        rows = _csv_rows(file, path)
        line, header = next(rows, (1, []))
        _check_text(header, path, line)
        _check_columns(header, path, line)
        for line, cells in _until_broken(rows, limit):
            try:
                record = _csv_record(header, cells, path, line)
            except DocumentError as error:
                limit.reject(error)
            else:
                limit.count_record()
                yield record


def _until_broken(rows: Iterator[tuple[int, list[str]]], limit: MistakeLimit) -> Iterator[tuple[int, list[str]]]:
    try:
        yield from rows
    except DocumentError as error:
        limit.reject(error)


def _check_columns(names: Sequence[str], path: Path, line: int) -> None:
    """Refuse a table whose columns cannot hold records."""
    if not names:
        raise _unreadable("the file is empty", "the first line names the columns", path, line)
    if len(set(names)) != len(names):
        raise _unreadable("two columns have the same name", "each column once", path, line)
    problems = [
        Problem(what="the column is missing", rule="each record has it", path=(name,))
        for name in NEEDED_COLUMNS
        if name not in names
    ]
    problems += [
        Problem(what="unknown column", rule="the columns of docs/records.md", path=(name,))
        for name in names
        if name not in COLUMNS
    ]
    if problems:
        raise DocumentError(first_problems([replace(problem, file=str(path), line=line) for problem in problems]))


def _csv_record(header: list[str], cells: list[str], path: Path, line: int) -> Record:
    if len(cells) != len(header):
        raise _unreadable(f"{len(cells)} cells", f"a row has {len(header)} cells", path, line)
    _check_text(cells, path, line)
    row = {name: _value(cell, name, path, line) for name, cell in zip(header, cells, strict=True)}
    return record_of(row, file=str(path), line=line)


def _check_text(cells: list[str], path: Path, line: int) -> None:
    """Refuse a row with bytes that are no text. The decoder has escaped them, so that the other rows can be read."""
    try:
        "".join(cells).encode()
    except UnicodeEncodeError as error:
        raise _unreadable("no UTF-8 text", "CSV in UTF-8", path, line) from error


def _csv_rows(file: TextIO, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not empty, each with the number of its first line."""
    lines = _RowLines(file)
    reader = csv.reader(lines, strict=True)
    line = 1
    try:
        for cells in reader:
            lines.end_row(is_empty=not cells)
            if cells:
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        what = f"no CSV: {error}; the rows from here on cannot be read"
        raise _unreadable(what, "CSV as autosync writes it", path, line) from error


class _RowLines:
    """The lines of a text. It limits the length of all lines of a row together, because a quoted cell may have many."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._num_empty = 0
        self._length, self._num_values = 0, 0

    def end_row(self, *, is_empty: bool) -> None:
        """Begin a new row with the next line."""
        self._length, self._num_values = 0, 0
        self._num_empty += is_empty
        if self._num_empty > MAX_EMPTY_LINES:
            raise csv.Error(f"more than {MAX_EMPTY_LINES} empty lines")

    def __iter__(self) -> _RowLines:
        return self

    def __next__(self) -> str:
        line = self._file.readline(MAX_LINE_BYTES + 1)
        if not line:
            raise StopIteration
        self._length += len(line)
        self._num_values += jsonio.num_values(line)
        if self._length > MAX_LINE_BYTES:
            raise csv.Error(f"a row of more than {MAX_LINE_BYTES} characters")
        if self._num_values > MAX_LINE_VALUES:
            raise csv.Error(f"a row of more than {MAX_LINE_VALUES:,} values")
        return line


@contextmanager
def _wide_cells() -> Iterator[None]:
    """Allow long cells: a strategy may be longer than the default limit of Python's reader."""
    limit = csv.field_size_limit(MAX_LINE_BYTES)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _cell(value: Any, kind: ColumnKind) -> str:
    if value is None:
        return ""
    if kind == "text":
        text = str(value)
        return f"'{text}" if _FORMULA.match(text) else text
    return one_line(value)


def _value(cell: str, name: str, path: Path, line: int) -> Any:
    """Return the value of a cell; numbers are written as in JSON."""
    if cell == "":
        return None
    if COLUMNS.get(name, "text") == "text":
        return cell[1:] if cell[0] == "'" and _FORMULA.match(cell[1:]) else cell
    return _parsed_json(cell, name, path, line)


def _parsed_json(text: str, name: str, path: Path, line: int) -> Any:
    try:
        return jsonio.parse(text)
    except ValueError as error:
        rule = "numbers, and lists and mappings as in JSON"
        problem = Problem(what="cannot be understood", rule=rule, path=(name,), file=str(path), line=line)
        raise DocumentError([problem]) from error


def write_parquet(records: Iterable[Record], file: BinaryIO) -> None:
    """Write a table with one row for each record. Times keep all their bits; pages have checksums."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types: Mapping[ColumnKind, Any] = {
        "text": pa.string(),
        "whole": pa.int64(),
        "number": pa.float64(),
        "texts": pa.list_(pa.string()),
        "wholes": pa.list_(pa.int64()),
        "numbers_by_rank": pa.list_(pa.list_(pa.float64())),
        "json": pa.string(),
    }
    schema = pa.schema([pa.field(name, types[kind]) for name, kind in COLUMNS.items()])
    with pq.ParquetWriter(file, schema, compression="zstd", compression_level=9, write_page_checksum=True) as writer:
        for group in _groups(map(row_of, records)):
            columns = [[row[name] for row in group] for name in COLUMNS]
            writer.write_table(pa.table(columns, schema=schema))


def _groups(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Yield rows in groups that a reader takes; the fields that are JSON are text."""
    group: list[Mapping[str, Any]] = []
    num_bytes = 0
    for row in rows:
        plain = {name: _arrow(row[name], kind) for name, kind in COLUMNS.items()}
        size = sum(map(_num_bytes, plain.values()))
        if group and (len(group) == _ROWS_PER_GROUP or num_bytes + size > _BYTES_PER_GROUP):
            yield group
            group, num_bytes = [], 0
        group.append(plain)
        num_bytes += size
    if group:
        yield group


def _num_bytes(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return sum(map(_num_bytes, value)) if isinstance(value, list | tuple) else 8


def _arrow(value: Any, kind: ColumnKind) -> Any:
    return one_line(value) if kind == "json" and value is not None else value


def read_parquet(path: Path, reject: Reject) -> Iterator[Record]:
    """Yield the records of a Parquet file. Rows after a broken page are lost."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    limit = MistakeLimit(path, reject)
    with open_input(path) as file:
        position = 0
        try:
            _check_columns(pq.read_schema(file).names, path, 1)
            file.seek(0)
            for row in rows_of(file):
                position += 1
                try:
                    record = record_of(_parsed(row, path, position), file=str(path), line=position)
                except DocumentError as error:
                    limit.reject(error)
                else:
                    limit.count_record()
                    yield record
        except TooLargeError as error:
            limit.reject(_unreadable(str(error), TooLargeError.RULE, path, position + 1))
        except (pa.ArrowException, OSError, ValueError, OverflowError):
            what = "no records in Parquet, or broken off" if position == 0 else "the rows from here on are broken"
            limit.reject(_unreadable(what, "Parquet as autosync writes it", path, position + 1))


def _parsed(row: Mapping[str, Any], path: Path, line: int) -> dict[str, Any]:
    return {
        name: _parsed_json(value, name, path, line) if COLUMNS.get(name) == "json" and isinstance(value, str) else value
        for name, value in row.items()
    }


def one_line(value: Any) -> str:
    """Return one line of JSON that keeps the order of the fields, so that a reader sees the important ones first."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def _unreadable(what: str, rule: str, path: Path, line: int) -> DocumentError:
    return DocumentError([Problem(what=what, rule=rule, file=str(path), line=line)])


WRITERS: Mapping[FileFormat, Callable[[Iterable[Record], BinaryIO], None]] = {
    "parquet": write_parquet,
    "csv": write_csv,
    "jsonl": write_jsonl,
}
READERS: Mapping[FileFormat, Callable[[Path, Reject], Iterator[Record]]] = {
    "parquet": read_parquet,
    "csv": read_csv,
    "jsonl": read_jsonl,
}
