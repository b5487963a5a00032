"""The folder layout of AutoDist's release: a folder for each model, and in it a folder for each cluster.

A cluster's folder has three files for each trial:

  MODEL/model-HASH.json             the model spec, where AutoDist has its graph_item
  MODEL/CLUSTER/resource_spec/ID    the cluster as AutoDist's resource_spec.yml, with our cluster file beside it
  MODEL/CLUSTER/runtime/ID          AutoDist's `average` and `runtime`, in seconds, and the rest of the record
  MODEL/CLUSTER/strategies/ID       the strategy file; none for PyTorch's own DDP
  MODEL/CLUSTER/failures/ID         in place of `runtime` for a failed trial

All files are JSON, which is also YAML. The names of folders are only for users; the reader uses the contents of the
files. It follows no links and opens only regular files, so a folder from any source may be read.
"""

from __future__ import annotations

import contextlib
import stat
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autosync import jsonio
from autosync.datasets.export import Report, rejecting
from autosync.datasets.facts import Spec, cluster_of_spec
from autosync.datasets.files import folder_name, new_folder
from autosync.datasets.formats import one_line
from autosync.datasets.mistake_limit import MistakeLimit, Reject
from autosync.datasets.parquet_folder import distinct, needed
from autosync.datasets.schema import Record, record_from_signed, seconds_of_steps, signed
from autosync.datasets.store import parse_spec, read_spec
from autosync.documents import MAX_BYTES, Document
from autosync.errors import DocumentError, InputError, Problem
from autosync.specs.resource_spec import dump_resource_spec
from autosync.syntax import MAX_VALUES

CLUSTER_KEY = "autosync"
"""The key of our cluster file in a resource spec; AutoDist ignores it."""
_OUTCOMES = ("runtime", "failures")


def write_autodist_folder(records: Iterable[Record], specs: Iterable[Spec], folder: Path | str) -> int:
    """Write records and the specs that they name into a new folder, completely or not at all.

    Returns the number of records.
    """
    chosen = list(distinct(records))
    known = needed(chosen, specs)
    described = {
        spec.spec_id: one_line({**dump_resource_spec(cluster_of_spec(spec)), CLUSTER_KEY: spec.fields})
        for spec in known.values()
        if spec.kind == "cluster"
    }
    with new_folder(Path(folder)) as made:
        for spec_id, model_name in {(record.model_spec, record.model_name) for record in chosen}:
            if spec_id is not None:
                _write(made / folder_name(model_name) / f"model-{spec_id}.json", one_line(known[spec_id].fields))
        for record in chosen:
            cluster_folder = made / folder_name(record.model_name) / folder_name(record.cluster_name)
            for place, text in _files(record, described).items():
                _write(cluster_folder / place, text)
    return len(chosen)


def _files(record: Record, described: Mapping[str, str]) -> Mapping[str, str]:
    """Return the files of a trial with their contents."""
    fields = signed(record)
    name = fields["checksum"]
    strategy = fields.pop("strategy", None)
    measured = {} if record.measurement is None else _runtime(record)
    found = {f"{'runtime' if measured else 'failures'}/{name}": one_line({**measured, "record": fields})}
    if record.cluster_spec is not None:
        found[f"resource_spec/{name}"] = described[record.cluster_spec]
    if strategy is not None:
        found[f"strategies/{name}"] = one_line(strategy)
    return found


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except FileNotFoundError:
        path.parent.mkdir(parents=True)
        path.write_text(text + "\n", encoding="utf-8")


def _runtime(record: Record) -> dict[str, Any]:
    """Return the fields that AutoDist stores for a trial: the time of each step, and the mean time."""
    assert record.measurement is not None, "asked of measured trials"
    seconds = seconds_of_steps(record.measurement.step_seconds)
    return {"average": statistics.fmean(seconds), "runtime": list(seconds)}


def is_autodist_folder(folder: Path) -> bool:
    """Return whether a folder has this layout."""
    models = [path for path in _listed(folder) if _is_folder(path)]
    clusters = (path for model in models for path in _listed(model) if _is_folder(path))
    return any(_is_folder(cluster / outcome) for cluster in clusters for outcome in _OUTCOMES)


class AutoDistFolder:
    """A folder of this layout, for reading only."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._clusters: dict[str, Spec] = {}

    def records(self, *, report: Report | None = None) -> Iterator[Record]:
        """Yield the records. Report errors of files to `report`; without it, raise the first error."""
        limit = MistakeLimit(self.path, rejecting(report))
        for cluster_folder in self._cluster_folders(limit.reject):
            for outcome in _OUTCOMES:
                for file in _listed(cluster_folder / outcome):
                    try:
                        record = self._record(cluster_folder, file)
                    except InputError as error:
                        limit.reject(DocumentError(error.located(str(file), 1).problems))
                    else:
                        limit.count_record()
                        yield record

    def specs(self) -> Iterator[Spec]:
        """Yield the models and clusters. A resource spec that cannot be read is skipped, as its record is."""
        for model_folder in filter(_is_folder, _listed(self.path)):
            for file in _listed(model_folder):
                if file.name.startswith("model-") and not _is_folder(file):
                    _refuse_special(file)
                    yield read_spec(file)
        for cluster_folder in self._cluster_folders(lambda _: None):
            for file in _listed(cluster_folder / "resource_spec"):
                with contextlib.suppress(InputError):
                    self._cluster(file)
        yield from {spec.spec_id: spec for spec in self._clusters.values()}.values()

    def _cluster_folders(self, reject: Reject) -> Iterator[Path]:
        for model_folder in _listed(self.path):
            if not _is_folder(model_folder):
                reject(_mistake("is no folder", "a folder a model", model_folder))
                continue
            for path in _listed(model_folder):
                if _is_folder(path):
                    yield path
                elif not path.name.startswith("model-"):
                    reject(_mistake("is no folder", "a folder a cluster, and the model specs", path))

    def _record(self, cluster_folder: Path, file: Path) -> Record:
        """Return the record of a trial. Its three files must agree."""
        outcome = _read_json(file)
        if not isinstance(outcome, dict) or not isinstance(outcome.get("record"), dict):
            hint = "AutoDist's own runs have no record, and strategies of TensorFlow's variables"
            problem = Problem(what="holds no record", rule="autosync export --format autodist wrote it", hint=hint)
            raise DocumentError([replace(problem, file=str(file), line=1)])
        fields = outcome["record"]
        if fields.get("strategy_id") is not None:
            fields = {**fields, "strategy": _read_json(cluster_folder / "strategies" / file.name)}
        record = record_from_signed(fields, file=str(file), line=1)
        expected = {} if record.measurement is None else _runtime(record)
        if expected != {key: value for key, value in outcome.items() if key != "record"}:
            raise _mistake("average and runtime are not those of the record", "a runtime is that of its record", file)
        if record.cluster_spec is not None:
            described = cluster_folder / "resource_spec" / file.name
            if self._cluster(described).spec_id != record.cluster_spec:
                raise _mistake("the resource spec is another cluster's", "that of the record", described)
        return record

    def _cluster(self, file: Path) -> Spec:
        """Return the cluster of a resource spec. The result is kept, because most trials have the same."""
        text = _read_text(file)
        if text not in self._clusters:
            described = _parsed(text, file)
            fields = described.get(CLUSTER_KEY) if isinstance(described, dict) else None
            self._clusters[text] = parse_spec(Document(file=str(file), value=fields, lines={(): 1}), kind="cluster")
        return self._clusters[text]


def _listed(folder: Path) -> list[Path]:
    """Return the contents of a folder by name; none if it does not exist. Links are listed but not followed."""
    return sorted(folder.iterdir()) if _is_folder(folder) else []


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _refuse_special(path: Path) -> None:
    """Refuse everything except a regular file in a real folder: a link may lead anywhere, and a pipe never ends."""
    try:
        mode = path.lstat().st_mode
    except OSError as error:
        raise _mistake(f"cannot be read: {error.strerror}", "each trial has its files", path) from error
    if not stat.S_ISREG(mode) or path.parent.is_symlink():
        raise _mistake("is no plain file", "links are not followed", path)


def _read_json(path: Path) -> Any:
    return _parsed(_read_text(path), path)


def _read_text(path: Path) -> str:
    _refuse_special(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _mistake(f"cannot be read: {error.strerror}", "each trial has its files", path) from error
    if len(raw) > MAX_BYTES:
        raise _mistake("is too large", f"at most {MAX_BYTES} bytes", path)
    return raw.decode(errors="replace")


def _parsed(text: str, path: Path) -> Any:
    try:
        return jsonio.parse(text, most=MAX_VALUES)
    except ValueError as error:
        what = f"is no JSON, or broken off: {error}"
        raise _mistake(what, "as autosync export --format autodist wrote it", path) from error


def _mistake(what: str, rule: str, path: Path) -> DocumentError:
    return DocumentError([Problem(what=what, rule=rule, file=str(path), line=1)])
