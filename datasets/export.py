"""Records into files that other tools open, and back without loss: Parquet, CSV and JSON lines.

Parquet and CSV have a row a record and the columns of `table`. JSON lines hold each record as it is. Every row carries
its schema, so files may be put one behind the other.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO, get_args

from autosync.datasets.files import replacing
from autosync.datasets.schema import Record, record_from_plain, record_to_plain
from autosync.datasets.table import COLUMNS, ColumnKind, record_of, row_of
from autosync.errors import DocumentError, InputError, Problem, UnknownNameError

FileFormat = Literal["parquet", "csv", "jsonl"]
FORMATS: tuple[FileFormat, ...] = get_args(FileFormat)

_ROWS_PER_GROUP = 1000


def export(
    records: Iterable[Record], path: Path | str, file_format: FileFormat | None = None, *, force: bool = False
) -> int:
    """Write records to a file, as a whole or not at all; how many there were.

    The format is that of the file's name where none is given. A file is replaced with `force` only.
    """
    write = _WRITERS[format_of(path, file_format)]
    num_records = 0

    def counted() -> Iterator[Record]:
        nonlocal num_records
        for record in records:
            num_records += 1
            yield record

    with replacing(Path(path), force=force) as file:
        write(counted(), file)
    return num_records


def import_records(path: Path | str) -> Iterator[Record]:
    """The records of a file that `export` wrote.

    The first that cannot be understood is a DocumentError with file and line; in Parquet the number is that of the row.
    """
    read = _READERS[format_of(path)]
    return read(Path(path))


def format_of(path: Path | str, file_format: FileFormat | None = None) -> FileFormat:
    """The format that is asked for, else that of the file's name. The two must not contradict each other."""
    if file_format is not None and file_format not in FORMATS:
        raise UnknownNameError("format", file_format, FORMATS)
    ending = next((known for known in FORMATS if Path(path).suffix.lower() == f".{known}"), None)
    if file_format is None and ending is None:
        rule = f"the name ends with {', '.join(f'.{known}' for known in FORMATS)}"
        raise InputError(f"{path}: the name tells no format", rule=rule)
    if file_format is not None and ending not in {None, file_format}:
        raise InputError(
            f"{path} is no name for {file_format}", rule=f"a name that ends with .{ending} is for {ending}"
        )
    found = file_format or ending
    assert found is not None
    return found


def _write_jsonl(records: Iterable[Record], file: BinaryIO) -> None:
    file.writelines(_json(record_to_plain(record)).encode() + b"\n" for record in records)


def _read_jsonl(path: Path) -> Iterator[Record]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                plain = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise _unreadable("no JSON, or broken off", "one record a line", path, number) from error
            yield record_from_plain(plain, file=str(path), line=number)


def _write_csv(records: Iterable[Record], file: BinaryIO) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    try:
        writer = csv.writer(text)
        writer.writerow(COLUMNS)
        for record in records:
            row = row_of(record)
            writer.writerow(_cell(row[name], kind) for name, kind in COLUMNS.items())
    finally:
        # The file is not ours to close.
        text.detach()


def _read_csv(path: Path) -> Iterator[Record]:
    # Spreadsheets put a mark before UTF-8 text.
    with path.open(encoding="utf-8-sig", newline="") as file, _wide_cells():
        line = 1
        header: list[str] = []
        for number, cells in _csv_rows(file, path):
            if not cells:
                pass  # an empty line
            elif not header:
                header = cells
                if len(set(header)) != len(header):
                    raise _unreadable("two columns have the same name", "each column once", path, line)
            elif len(cells) != len(header):
                raise _unreadable(f"{len(cells)} cells", f"a row has {len(header)} cells", path, line)
            else:
                row = {name: _value(cell, name, path, line) for name, cell in zip(header, cells, strict=True)}
                yield record_of(row, file=str(path), line=line)
            line = number + 1


def _csv_rows(file: TextIO, path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows, each with the line that it ends in."""
    reader = csv.reader(file, strict=True)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except (csv.Error, UnicodeDecodeError) as error:
        raise _unreadable(f"no CSV: {error}", "CSV in UTF-8", path, reader.line_num) from error


@contextmanager
def _wide_cells() -> Iterator[None]:
    """A strategy may be longer than the longest cell that Python's reader takes unless told otherwise."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _cell(value: Any, kind: ColumnKind) -> str:
    if value is None:
        return ""
    if kind == "text":
        return str(value)
    return _json(value)


def _value(cell: str, name: str, path: Path, line: int) -> Any:
    """What stands in a cell; a number is written as in JSON."""
    if cell == "":
        return None
    if COLUMNS.get(name, "text") == "text":
        return cell
    return _parsed_json(cell, name, path, line)


def _parsed_json(text: str, name: str, path: Path, line: int) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        rule = "numbers, and lists and mappings as in JSON"
        problem = Problem(what="cannot be understood", rule=rule, path=(name,), file=str(path), line=line)
        raise DocumentError([problem]) from error


def _write_parquet(records: Iterable[Record], file: BinaryIO) -> None:
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
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        rows = map(row_of, records)
        while group := list(itertools.islice(rows, _ROWS_PER_GROUP)):
            columns = [[_arrow(row[name], kind) for row in group] for name, kind in COLUMNS.items()]
            writer.write_table(pa.table(columns, schema=schema))


def _arrow(value: Any, kind: ColumnKind) -> Any:
    return _json(value) if kind == "json" and value is not None else value


def _read_parquet(path: Path) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with path.open("rb") as file:
        position = 0
        try:
            for batch in pq.ParquetFile(file).iter_batches(batch_size=_ROWS_PER_GROUP):
                for row in batch.to_pylist():
                    position += 1
                    yield record_of(_parsed(row, path, position), file=str(path), line=position)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable("no records in Parquet, or broken off", "written by autosync export", path, 1) from error


def _parsed(row: Mapping[str, Any], path: Path, line: int) -> dict[str, Any]:
    return {
        name: _parsed_json(value, name, path, line) if COLUMNS.get(name) == "json" and isinstance(value, str) else value
        for name, value in row.items()
    }


def _json(value: Any) -> str:
    """One line of JSON with the fields in their order: what is read first stands first."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def _unreadable(what: str, rule: str, path: Path, line: int) -> DocumentError:
    return DocumentError([Problem(what=what, rule=rule, file=str(path), line=line)])


_WRITERS: Mapping[FileFormat, Callable[[Iterable[Record], BinaryIO], None]] = {
    "parquet": _write_parquet,
    "csv": _write_csv,
    "jsonl": _write_jsonl,
}
_READERS: Mapping[FileFormat, Callable[[Path], Iterator[Record]]] = {
    "parquet": _read_parquet,
    "csv": _read_csv,
    "jsonl": _read_jsonl,
}
