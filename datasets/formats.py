"""The formats that records have in files: Parquet, CSV and JSON lines, written and read back without loss.

Parquet and CSV have a row a record and the columns of `table`. JSON lines hold each record as it is. Every record comes
with its checksum: what a disk, a spreadsheet that rounds or a broken line made of it is refused and not believed.
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

from autosync.datasets.schema import Record, record_from_signed, signed
from autosync.datasets.table import COLUMNS, ColumnKind, record_of, row_of
from autosync.errors import DocumentError, Problem

FileFormat = Literal["parquet", "csv", "jsonl"]
FORMATS: tuple[FileFormat, ...] = get_args(FileFormat)

Reject = Callable[[DocumentError], None]
"""What becomes of something that is no record; where it returns, the next one is read."""

_ROWS_PER_GROUP = 1000


def write_jsonl(records: Iterable[Record], file: BinaryIO) -> None:
    """Write a record a line."""
    file.writelines(one_line(signed(record)).encode() + b"\n" for record in records)


def read_jsonl(path: Path, reject: Reject) -> Iterator[Record]:
    """The records of a file of JSON lines."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                plain = json.loads(line)
            except (ValueError, RecursionError):
                what = "no JSON" if line.endswith(b"\n") else "the last line breaks off"
                reject(_unreadable(what, "one record a line", path, number))
                continue
            try:
                yield record_from_signed(plain, file=str(path), line=number)
            except DocumentError as error:
                reject(error)


def write_csv(records: Iterable[Record], file: BinaryIO) -> None:
    """Write a header and a row a record."""
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


def read_csv(path: Path, reject: Reject) -> Iterator[Record]:
    """The records of a CSV file, its columns in any order; what comes behind broken quotes cannot be read."""
    # Spreadsheets put a mark before UTF-8 text.
    with path.open(encoding="utf-8-sig", newline="") as file, _wide_cells():
        line = 1
        header: list[str] = []
        try:
            for number, cells in _csv_rows(file, path):
                if not cells:
                    pass  # an empty line
                elif not header:
                    header = _header(cells, path, line)
                else:
                    try:
                        yield _csv_record(header, cells, path, line)
                    except DocumentError as error:
                        reject(error)
                line = number + 1
        except DocumentError as error:
            reject(error)


def _header(cells: list[str], path: Path, line: int) -> list[str]:
    if len(set(cells)) != len(cells):
        raise _unreadable("two columns have the same name", "each column once", path, line)
    return cells


def _csv_record(header: list[str], cells: list[str], path: Path, line: int) -> Record:
    if len(cells) != len(header):
        raise _unreadable(f"{len(cells)} cells", f"a row has {len(header)} cells", path, line)
    row = {name: _value(cell, name, path, line) for name, cell in zip(header, cells, strict=True)}
    return record_of(row, file=str(path), line=line)


def _csv_rows(file: TextIO, path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows, each with the line that it ends in."""
    reader = csv.reader(file, strict=True)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except (csv.Error, UnicodeDecodeError) as error:
        raise _unreadable(f"no CSV: {error}", "CSV in UTF-8", path, max(reader.line_num, 1)) from error


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
    return one_line(value)


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


def write_parquet(records: Iterable[Record], file: BinaryIO) -> None:
    """Write a table with a row a record. Times have all their bits; pages have checksums."""
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
        rows = map(row_of, records)
        while group := list(itertools.islice(rows, _ROWS_PER_GROUP)):
            columns = [[_arrow(row[name], kind) for row in group] for name, kind in COLUMNS.items()]
            writer.write_table(pa.table(columns, schema=schema))


def _arrow(value: Any, kind: ColumnKind) -> Any:
    return one_line(value) if kind == "json" and value is not None else value


def read_parquet(path: Path, reject: Reject) -> Iterator[Record]:
    """The records of a Parquet file, by the numbers of their rows; what is behind a broken page is lost."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with path.open("rb") as file:
        position = 0
        try:
            table = pq.ParquetFile(file, page_checksum_verification=True)
            for batch in table.iter_batches(batch_size=_ROWS_PER_GROUP):
                for row in batch.to_pylist():
                    position += 1
                    try:
                        yield record_of(_parsed(row, path, position), file=str(path), line=position)
                    except DocumentError as error:
                        reject(error)
        except (pa.ArrowException, OSError, ValueError, OverflowError):
            what = "no records in Parquet, or broken off" if position == 0 else "the rows from here on are broken"
            reject(_unreadable(what, "Parquet as autosync writes it", path, position + 1))


def _parsed(row: Mapping[str, Any], path: Path, line: int) -> dict[str, Any]:
    return {
        name: _parsed_json(value, name, path, line) if COLUMNS.get(name) == "json" and isinstance(value, str) else value
        for name, value in row.items()
    }


def one_line(value: Any) -> str:
    """One line of JSON with the fields in their order: what is read first stands first."""
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
