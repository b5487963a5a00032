"""A store of records that grows during measurements: a folder that stays intact after a crash at any moment.

`records.jsonl` has one record on each line, and each is on the disk before the next trial begins. `specs/` has each
model and cluster once, under the hash by which records name it. One process at a time writes; others may read
meanwhile.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from autosync import documents, jsonio
from autosync.datasets.export import Report, rejecting
from autosync.datasets.facts import Spec, cluster_spec, model_spec
from autosync.datasets.formats import read_jsonl
from autosync.datasets.schema import Record, signed
from autosync.disk_errors import naming_file
from autosync.errors import DocumentError, InputError, OperationError, Problem, first_problems
from autosync.specs.cluster_file import parse_cluster
from autosync.specs.model import SCHEMA_KIND as MODEL_KIND
from autosync.specs.model import SCHEMA_VERSION as MODEL_VERSION
from autosync.specs.model import ModelSpec


class RecordStore:
    """The files of a store."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def records_file(self) -> Path:
        return self.path / "records.jsonl"

    @property
    def specs_folder(self) -> Path:
        return self.path / "specs"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from writing; raise if another process is writing."""
        self.path.mkdir(parents=True, exist_ok=True)
        # Only the owner and the group may open the file, because any process that can read it could lock it.
        with os.fdopen(os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660), "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise OperationError(f"{self.path}: another process writes to this store") from error
            yield

    def add_spec(self, spec: Spec) -> None:
        """Keep a spec, unless the store has it already."""
        path = self.specs_folder / f"{spec.kind}-{spec.spec_id}.json"
        if not path.is_file():
            with naming_file(path):
                jsonio.write_json(path, spec.fields)

    def append(self, record: Record) -> None:
        """Add a record. It is on the disk when this returns."""
        self.extend([record])

    def extend(self, records: Iterable[Record]) -> None:
        """Add records. They are on the disk when this returns."""
        try:
            with naming_file(self.records_file):
                jsonio.append_json_lines(self.records_file, map(signed, records))
        except OSError:
            # Remove a line that a full disk has cut off, so that the rest can be read. Appending nothing does this.
            with suppress(OSError):
                jsonio.append_json_lines(self.records_file, [])
            raise

    def records(self, *, report: Report | None = None) -> Iterator[Record]:
        """Yield the records in their order. Unreadable lines go to `report`; without it they are raised at the end."""
        problems: list[Problem] = []
        tell = problems.append if report is None else report
        if self.records_file.exists():
            yield from read_jsonl(self.records_file, rejecting(tell))
        if problems:
            raise DocumentError(first_problems(problems))

    def specs(self) -> Iterator[Spec]:
        """Yield the models, then the clusters."""
        files = sorted(self.specs_folder.glob("*.json")) if self.specs_folder.is_dir() else []
        yield from (read_spec(path) for path in sorted(files, key=lambda path: not path.name.startswith("model-")))


def find_store(path: Path | str) -> RecordStore:
    """Return the store in a folder; raise if there is none."""
    store = RecordStore(path)
    if not store.records_file.is_file():
        rule = "a store is a folder with records.jsonl in it"
        raise InputError(f"{path} is no store of records", rule=rule)
    return store


def read_spec(path: Path) -> Spec:
    """Return the spec of a file in a store; raise if it does not match the file's name."""
    document = documents.read_document(path)
    spec = parse_spec(document, kind="model" if path.name.startswith("model-") else "cluster")
    if path.stem != f"{spec.kind}-{spec.spec_id}":
        what = f"the file holds the {spec.kind} {spec.spec_id}"
        raise DocumentError([Problem(what=what, rule="a spec is named after its hash", file=str(path), line=1)])
    return spec


def parse_spec(document: documents.Document, *, kind: str) -> Spec:
    """Return the spec in a document."""
    if kind == "cluster":
        return cluster_spec(parse_cluster(document))
    return model_spec(documents.parse(document, kind=MODEL_KIND, version=MODEL_VERSION, into=ModelSpec))
