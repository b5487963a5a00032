"""Where a dataset may lie: a store, a folder that was packed, or a file of records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from autosync.datasets.export import Report, import_records
from autosync.datasets.facts import Spec
from autosync.datasets.formats import FORMATS
from autosync.datasets.packed import RECORDS_FILE, SPECS_FILE, read_packed, read_specs
from autosync.datasets.schema import Record
from autosync.datasets.store import Store
from autosync.errors import InputError


class Source:
    """A dataset that is only read."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        store = Store(self.path)
        self._store = store if store.records_file.is_file() else None
        self._is_packed = self._store is None and (self.path / RECORDS_FILE).is_file()
        is_file = self.path.is_file() and self.path.suffix.lower() in {f".{one}" for one in FORMATS}
        if not (self._store or self._is_packed or is_file):
            endings = ", ".join(f".{one}" for one in FORMATS)
            rule = f"a store, a folder with {RECORDS_FILE}, or a file that ends with {endings}"
            raise InputError(f"{path} holds no records", rule=rule)

    def records(self, report: Report) -> Iterator[Record]:
        """The records; what holds none goes to `report`."""
        if self._store is not None:
            yield from self._store.records(report=report)
        elif self._is_packed:
            yield from read_packed(self.path, report=report)
        else:
            yield from import_records(self.path, report=report)

    def specs(self) -> list[Spec]:
        """The models and clusters that come with the records; a file of records has none."""
        if self._store is not None:
            return list(self._store.specs())
        if self._is_packed and (self.path / SPECS_FILE).is_file():
            return list(read_specs(self.path))
        return []
