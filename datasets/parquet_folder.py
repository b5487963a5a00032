"""A dataset in three Parquet files.

`records.parquet` has the reliable records, `disturbed.parquet` the doubtful ones, and `specs.parquet` each model and
cluster once. Shipped records have this form. A user who reads only `records.parquet` gets the reliable measurements.
Any tool that reads Parquet can read the files. Similar records are next to each other, which makes the files small.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, filterfalse
from pathlib import Path
from typing import Any, BinaryIO

from autosync import jsonio
from autosync.datasets.export import Report, import_records
from autosync.datasets.facts import Spec
from autosync.datasets.files import replacing
from autosync.datasets.formats import write_parquet
from autosync.datasets.machine_drift import without_drift
from autosync.datasets.parquet_rows import TooLargeError, rows_of
from autosync.datasets.reliability import is_disturbed
from autosync.datasets.schema import Record, record_to_plain
from autosync.datasets.store import RecordStore, parse_spec
from autosync.disk_errors import naming_file
from autosync.documents import Document
from autosync.errors import DocumentError, InputError, Problem, first_problems
from autosync.syntax import MAX_VALUES

RECORDS_FILE = "records.parquet"
DISTURBED_FILE = "disturbed.parquet"
SPECS_FILE = "specs.parquet"


def pack(records: Iterable[Record], specs: Iterable[Spec], folder: Path | str, *, force: bool = False) -> int:
    """Write records and the specs that they name, each once; return the number of records.

    A record whose model or cluster is not among the specs is refused.
    """
    chosen = sorted(distinct(records), key=_place)
    named = sorted(needed(chosen, specs).values(), key=lambda spec: (spec.kind, spec.name, spec.spec_id))
    writers: dict[str, Callable[[BinaryIO], None]] = {
        SPECS_FILE: lambda file: _write_specs(named, file),
        DISTURBED_FILE: lambda file: write_parquet(filter(is_disturbed, chosen), file),
        RECORDS_FILE: lambda file: write_parquet(filterfalse(is_disturbed, chosen), file),
    }
    # All files are on the disk before any gets its name: otherwise the folder could mix the files of two datasets.
    with ExitStack() as stack:
        opened = {name: stack.enter_context(replacing(Path(folder) / name, force=force)) for name in writers}
        for name, file in opened.items():
            with naming_file(Path(folder) / name):
                writers[name](file)
                file.flush()
                os.fsync(file.fileno())
    return len(chosen)


def needed(records: Iterable[Record], specs: Iterable[Spec]) -> dict[str, Spec]:
    """Return the specs that records name, by their hashes. Raise if one is missing."""
    known = {spec.spec_id: spec for spec in specs}
    named = {name for record in records for name in (record.model_spec, record.cluster_spec) if name is not None}
    missing = sorted(named - known.keys())
    if missing:
        what = f"{len(missing)} specs that records name are missing, {missing[0]} the first"
        hint = "a single file of records has none: name its study or folder"
        raise InputError(what, rule="a dataset holds the models and clusters of its records", hint=hint)
    return {name: known[name] for name in named}


def read_packed(folder: Path | str, *, report: Report | None = None) -> Iterator[Record]:
    """Yield the records of a dataset, disturbed ones last.

    Unreadable records go to `report`; without it the first one is raised.
    """
    files = [Path(folder) / name for name in (RECORDS_FILE, DISTURBED_FILE)]
    # A folder from elsewhere may have no second file.
    found = [file for file in files if file.is_file()] or files[:1]
    return chain.from_iterable(import_records(file, report=report) for file in found)


def read_specs(folder: Path | str) -> Iterator[Spec]:
    """Yield the models and clusters of a dataset."""
    import pyarrow as pa

    path = Path(folder) / SPECS_FILE
    try:
        with path.open("rb") as file:
            rows = list(rows_of(file))
    except (pa.ArrowException, OSError, ValueError, OverflowError, TooLargeError) as error:
        what, rule = "no specs in Parquet, or broken off", "written by pack"
        if isinstance(error, TooLargeError):
            what, rule = str(error), TooLargeError.RULE
        raise DocumentError([Problem(what=what, rule=rule, file=str(path), line=1)]) from error
    for number, row in enumerate(rows, start=1):
        yield _spec_of(row, str(path), number)


def unpack(folder: Path | str, store: RecordStore) -> int:
    """Add the records that a store lacks to the store, in the order of the trials; return their number.

    So a lost store can be restored from its packed dataset. The flags of `flag_drift` are removed, because packing the
    store sets them again. A trial that both have with different outcomes is refused.
    """
    if not (Path(folder) / RECORDS_FILE).is_file():
        raise InputError(f"{folder} holds no dataset", rule=f"a folder with {RECORDS_FILE} and {SPECS_FILE}")
    new = not_among(read_packed(folder), store.records())
    known = {(record.study, record.trial) for record in store.records()}
    clashing = [record for record in new if (record.study, record.trial) in known]
    if clashing:
        what = f"{store.path} has another trial {clashing[0].trial} of {clashing[0].study} than {folder}"
        hint = f"{len(clashing)} trials are in both; a new store can begin with {folder}"
        raise InputError(what, rule="a study has each trial once", hint=hint)
    for spec in read_specs(folder):
        store.add_spec(spec)
    store.extend(sorted(map(without_drift, new), key=lambda record: (record.study, record.trial)))
    return len(new)


def not_among(records: Iterable[Record], others: Iterable[Record]) -> list[Record]:
    """Return the records that are not among the others. Flags for drift make no difference."""
    known = {_content(without_drift(other)) for other in others}
    return [record for record in records if _content(without_drift(record)) not in known]


def distinct(records: Iterable[Record]) -> Iterator[Record]:
    """Yield each record once."""
    seen: set[str] = set()
    for record in records:
        content = _content(record)
        if content not in seen:
            seen.add(content)
            yield record


def agreeing(records: Iterable[Record]) -> list[Record]:
    """Return each trial's record once. Raise, with the names of the trials, if two records of a trial differ.

    If two differ only in the flag for drift, the flagged one stays.
    """
    found: dict[tuple[str, int], Record] = {}
    problems: list[Problem] = []
    for record in records:
        number = (record.study, record.trial)
        other = found.setdefault(number, record)
        if _content(without_drift(other)) != _content(without_drift(record)):
            what = "two records of this trial have other contents"
            rule = "a study has each trial once"
            problems.append(Problem(what=what, rule=rule, path=(record.study, "trials", record.trial)))
        elif record != without_drift(record):
            found[number] = record
    if problems:
        hint = "merge them apart, or leave one of the datasets out"
        raise InputError(first_problems([replace(problem, hint=hint) for problem in dict.fromkeys(problems)]))
    return list(found.values())


def _content(record: Record) -> str:
    return jsonio.content_hash(record_to_plain(record), length=32)


def _place(record: Record) -> tuple[str, str, str, int]:
    return record.model_name, record.cluster_name, record.study, record.trial


def _write_specs(specs: Sequence[Spec], file: BinaryIO) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Callable[[Spec], str]] = {
        "kind": lambda spec: spec.kind,
        "spec": lambda spec: spec.spec_id,
        "fingerprint": lambda spec: spec.fingerprint,
        "name": lambda spec: spec.name,
        "fields": lambda spec: json.dumps(spec.fields, separators=(",", ":"), allow_nan=False),
    }
    schema = pa.schema([pa.field(name, pa.string()) for name in columns])
    table = pa.table([[value(spec) for spec in specs] for value in columns.values()], schema=schema)
    pq.write_table(table, file, compression="zstd", write_page_checksum=True)


def _spec_of(row: dict[str, Any], file: str, line: int) -> Spec:
    """Return the spec of a row. It must match the row's other columns."""

    def problem(what: str) -> DocumentError:
        return DocumentError([Problem(what=what, rule="a row holds a model or a cluster", file=file, line=line)])

    try:
        fields = jsonio.parse(str(row["fields"]), most=MAX_VALUES)
    except (KeyError, ValueError) as error:
        raise problem("the fields cannot be understood") from error
    spec = parse_spec(Document(file=file, value=fields, lines={(): line}), kind=str(row.get("kind")))
    if (spec.spec_id, spec.fingerprint, spec.name) != (row.get("spec"), row.get("fingerprint"), row.get("name")):
        raise problem(f"the row says it is {row.get('name')!r}, its fields are of {spec.name!r}")
    return spec
