"""Priors from other models and clusters: opened from a saved folder, or learned from a dataset.

A prior from a dataset is trained again whenever it is opened, and reading thousands of strategies takes time. So train
and save a prior that is used often.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autosync import jsonio
from autosync.datasets.dataset import Dataset, file_hint
from autosync.datasets.facts import Spec, cluster_of_spec, model_of_spec
from autosync.datasets.machine_drift import Combination, combination_of, flag_drift
from autosync.datasets.outdated import is_outdated
from autosync.datasets.schema import Record
from autosync.datasets.split import name_at_any_speed
from autosync.errors import DocumentError, InputError, Problem
from autosync.simulators.learned.files import TrainedOn
from autosync.simulators.learned.student import Student
from autosync.simulators.learned.trials import Rows, TrialGroup, TrialReader, targets_of, teaching
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec

Enrol = Callable[[ModelSpec, ClusterSpec], Student[Rows]]
"""Makes a student for a model on a cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lot:
    """The undisturbed records of one model on one cluster that can be learned from, each strategy once.

    Some strategies were measured repeatedly, to detect drift of the machine or to measure the fastest better. Further
    trials teach nothing more and would compare a strategy with itself. Strategies that are carried out otherwise today
    are left out.
    """

    model: ModelSpec
    cluster: ClusterSpec
    records: tuple[Record, ...]

    @property
    def model_name(self) -> str:
        """The model's name without its speed, because the model at another speed is the same model."""
        return name_at_any_speed(self.model.name)


def lots_of(path: Path | str) -> list[Lot]:
    """Return the lots of a dataset, in an order that does not depend on the order of its records."""
    source = Dataset(path)
    problems: list[Problem] = []
    records = flag_drift(source.records(problems.append), keep=True)
    if problems:
        raise DocumentError(problems[:1])
    lots = lots_of_records(records, source.specs())
    if not lots:
        rule = "a store or a dataset with its model and cluster specs, and records that were measured undisturbed"
        raise InputError(f"{path}: nothing can be learned from its records", rule=rule, hint=file_hint(path))
    return lots


def lots_of_records(records: Iterable[Record], specs: Iterable[Spec]) -> list[Lot]:
    """Return the lots of these records. Records whose specs are not given are left out."""
    known = {spec.spec_id: spec for spec in specs}
    found: dict[Combination, list[Record]] = defaultdict(list)
    for record in teaching(list(records)):
        found[combination_of(record)].append(record)
    lots = []
    for (model_id, cluster_id), chosen in sorted(found.items()):
        if model_id in known and cluster_id in known:
            model, cluster = model_of_spec(known[model_id]), cluster_of_spec(known[cluster_id])
            valid = tuple([one for one in _each_once(chosen) if not is_outdated(one, model, cluster)])
            if valid:
                lots.append(Lot(model=model, cluster=cluster, records=valid))
    return lots


def _each_once(records: Iterable[Record]) -> Iterator[Record]:
    """Yield the first trial of each strategy."""
    seen: set[str | None] = set()
    for record in records:
        if record.strategy_id not in seen:
            seen.add(record.strategy_id)
            yield record


def groups_of(lots: Iterable[Lot], enrol: Enrol[Rows]) -> Iterator[TrialGroup[Rows]]:
    """Yield each lot as rows that its student has read. Reading takes time, so lots are read one at a time."""
    for lot in lots:
        student = enrol(lot.model, lot.cluster)
        rows = TrialReader(student.read).rows_of(lot.records)
        measurements = [record.measurement for record in lot.records if record.measurement is not None]
        targets = targets_of(measurements, student.complexity(rows))
        yield TrialGroup(rows=rows, targets=targets, model=lot.model_name, cluster=lot.cluster.name)


def trained_on(lots: Sequence[Lot]) -> TrainedOn:
    """Return the manifest's entry about the records that were learned from."""
    contents = [
        (record.strategy_id, record.model_spec, record.cluster_spec, record.measurement.median_seconds)
        for lot in lots
        for record in lot.records
        if record.measurement is not None
    ]
    return TrainedOn(
        num_records=len(contents),
        models=tuple(sorted({lot.model_name for lot in lots})),
        clusters=tuple(sorted({lot.cluster.name for lot in lots})),
        fingerprint=jsonio.content_hash(contents),
    )
