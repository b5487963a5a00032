"""A dataset: a store, a Parquet folder, a study, a folder in AutoDist's layout or a file of records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from autosync.datasets.autodist_folder import AutoDistFolder, is_autodist_folder
from autosync.datasets.export import Report, import_records
from autosync.datasets.facts import Spec, cluster_spec, model_spec
from autosync.datasets.formats import FORMATS
from autosync.datasets.parquet_folder import RECORDS_FILE, SPECS_FILE, read_packed, read_specs
from autosync.datasets.schema import Record
from autosync.datasets.store import RecordStore
from autosync.datasets.studies import CLUSTER_FILE, MODEL_FILE, is_study, read_study
from autosync.errors import InputError, Problem
from autosync.near_files import near_path_hint
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["store", "packed", "study", "layout", "file"]

SHIPPED = Path(__file__).parent / "records"
"""The records that ship with autosync."""


class Dataset:
    """A dataset, for reading only."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.kind: Kind = _kind(self.path)

    def records(self, report: Report) -> Iterator[Record]:
        """Yield the records; mistakes go to `report`."""
        match self.kind:
            case "store":
                return RecordStore(self.path).records(report=report)
            case "packed":
                return read_packed(self.path, report=report)
            case "study":
                return read_study(self.path, report=report)
            case "layout":
                return AutoDistFolder(self.path).records(report=report)
            case "file":
                return import_records(self.path, report=report)

    def to_frame(self, *, report: Report | None = None) -> pd.DataFrame:
        """Return the records as a pandas table (`frame.to_frame`).

        Without `report`, the first unreadable record is raised.
        """
        from autosync.datasets.frame import to_frame

        return to_frame(self.records(report or _raise))

    def specs(self) -> list[Spec]:
        """Return the models and clusters that come with the records; for a file of records, those packed beside it."""
        match self.kind:
            case "store":
                return list(RecordStore(self.path).specs())
            case "packed":
                return _packed_specs(self.path)
            case "study":
                return list(_study_specs(self.path))
            case "layout":
                return list(AutoDistFolder(self.path).specs())
            case "file":
                return _packed_specs(self.path.parent)


def file_hint(path: Path | str) -> str:
    """Return the hint for a dataset without specs, if it is a single file."""
    is_alone = Path(path).is_file() and not (Path(path).parent / SPECS_FILE).is_file()
    return "name the study or folder; a single file holds no models and clusters" if is_alone else ""


def refuse_source(folder: Path) -> None:
    """Raise if a folder is a store or a study, which keep their own records."""
    if is_study(folder) or RecordStore(folder).records_file.is_file():
        what = f"{folder} is a study or a store"
        raise InputError(what, rule="a dataset is written into a folder of its own", hint="name another one")


def _kind(path: Path) -> Kind:
    if path.is_file() and path.suffix.lower() in {f".{one}" for one in FORMATS}:
        return "file"
    # A study or a dataset stays one when its records are exported into its own folder.
    if is_study(path):
        return "study"
    store, is_packed = RecordStore(path), (path / RECORDS_FILE).is_file()
    if store.records_file.is_file() and (store.specs_folder.is_dir() or not is_packed):
        return "store"
    if is_packed:
        return "packed"
    if path.is_dir() and is_autodist_folder(path):
        return "layout"
    endings = ", ".join(f".{one}" for one in FORMATS)
    what = "holds no records" if path.exists() else "is not there"
    rule = f"a store, a study, a folder with {RECORDS_FILE} or as AutoDist has them, or a file that ends with {endings}"
    raise InputError(f"{path} {what}", rule=rule, hint="" if path.exists() else near_path_hint(path))


def _packed_specs(folder: Path) -> list[Spec]:
    return list(read_specs(folder)) if (folder / SPECS_FILE).is_file() else []


def _study_specs(folder: Path) -> Iterator[Spec]:
    """Yield the specs of a study. Old studies, whose records name no specs, may have none."""
    if (folder / MODEL_FILE).is_file():
        yield model_spec(load_model(str(folder / MODEL_FILE)))
    if (folder / CLUSTER_FILE).is_file():
        yield cluster_spec(load_cluster(str(folder / CLUSTER_FILE)))


def _raise(problem: Problem) -> None:
    raise InputError([problem])
