"""Where a dataset may lie: a store, a packed folder, a study, a folder as AutoDist has it, or a file of records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from autosync.datasets.export import Report, import_records
from autosync.datasets.facts import Spec, cluster_spec, model_spec
from autosync.datasets.formats import FORMATS
from autosync.datasets.layout import Layout, is_layout
from autosync.datasets.packed import RECORDS_FILE, SPECS_FILE, read_packed, read_specs
from autosync.datasets.schema import Record
from autosync.datasets.store import Store
from autosync.datasets.studies import CLUSTER_FILE, JOURNAL_FILE, MODEL_FILE, STUDY_FILE, read_study
from autosync.errors import InputError
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model

Kind = Literal["store", "packed", "study", "layout", "file"]

SHIPPED = Path(__file__).parent / "records"
"""The records that ship with autosync."""


class Source:
    """A dataset that is only read."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.kind: Kind = _kind(self.path)

    def records(self, report: Report) -> Iterator[Record]:
        """The records; what holds none goes to `report`."""
        match self.kind:
            case "store":
                return Store(self.path).records(report=report)
            case "packed":
                return read_packed(self.path, report=report)
            case "study":
                return read_study(self.path, report=report)
            case "layout":
                return Layout(self.path).records(report=report)
            case "file":
                return import_records(self.path, report=report)

    def specs(self) -> list[Spec]:
        """The models and clusters that come with the records; a file of records has none."""
        match self.kind:
            case "store":
                return list(Store(self.path).specs())
            case "packed":
                return list(read_specs(self.path)) if (self.path / SPECS_FILE).is_file() else []
            case "study":
                return list(_study_specs(self.path))
            case "layout":
                return list(Layout(self.path).specs())
            case "file":
                return []


def _kind(path: Path) -> Kind:
    if path.is_file() and path.suffix.lower() in {f".{one}" for one in FORMATS}:
        return "file"
    if Store(path).records_file.is_file():
        return "store"
    if (path / RECORDS_FILE).is_file():
        return "packed"
    if (path / JOURNAL_FILE).is_file() or (path / STUDY_FILE).is_file():
        return "study"
    if path.is_dir() and is_layout(path):
        return "layout"
    endings = ", ".join(f".{one}" for one in FORMATS)
    what = "holds no records" if path.exists() else "is not there"
    rule = f"a store, a study, a folder with {RECORDS_FILE} or as AutoDist has them, or a file that ends with {endings}"
    raise InputError(f"{path} {what}", rule=rule)


def _study_specs(folder: Path) -> Iterator[Spec]:
    """What a study is about; studies that were written before records named their specs need none."""
    if (folder / MODEL_FILE).is_file():
        yield model_spec(load_model(str(folder / MODEL_FILE)))
    if (folder / CLUSTER_FILE).is_file():
        yield cluster_spec(load_cluster(str(folder / CLUSTER_FILE)))
