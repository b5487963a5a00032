"""Writes records into files for other tools, and reads them back: Parquet, CSV and JSON lines, by the file's ending."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from autosync.datasets.files import replacing
from autosync.datasets.formats import FORMATS, READERS, WRITERS, FileFormat
from autosync.datasets.schema import Record
from autosync.errors import DocumentError, InputError, Problem, UnknownNameError

Report = Callable[[Problem], None]


def export(
    records: Iterable[Record], path: Path | str, file_format: FileFormat | None = None, *, force: bool = False
) -> int:
    """Write records to a file, completely or not at all; return the number of records.

    Without `file_format` the file's name decides. An existing file is replaced only with `force`.
    """
    write = WRITERS[format_of(path, file_format)]
    num_records = 0

    def counted() -> Iterator[Record]:
        nonlocal num_records
        for record in records:
            num_records += 1
            yield record

    with replacing(Path(path), force=force) as file:
        write(counted(), file)
    return num_records


def import_records(path: Path | str, *, report: Report | None = None) -> Iterator[Record]:
    """Yield the records of a file that `export` wrote.

    Records that cannot be read go to `report`; without it the first raises a DocumentError. Both name the file and the
    line; in Parquet the line is the number of the row.
    """
    return READERS[format_of(path)](Path(path), rejecting(report))


def rejecting(report: Report | None) -> Callable[[DocumentError], None]:
    """Return the function that handles an error: it reports the problems or, without `report`, raises the error."""

    def reject(error: DocumentError) -> None:
        if report is None:
            raise error
        for problem in error.problems:
            report(problem)

    return reject


def format_of(path: Path | str, file_format: FileFormat | None = None) -> FileFormat:
    """Return the given format, else that of the file's name. Raise if the two contradict each other."""
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
