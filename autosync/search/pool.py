"""The pool of a replayed search: the recorded trials of one model on one cluster.

A search over a pool needs no cluster. Each strategy takes the time of its record, and strategies without a record
cannot be tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from autosync.datasets.dataset import Dataset, file_hint
from autosync.datasets.facts import Spec
from autosync.datasets.schema import Failure, Measurement, Record
from autosync.datasets.studies import find_study
from autosync.documents import parse, without_file
from autosync.errors import DocumentError, InputError, Problem, first_problems
from autosync.search.candidates import STOCK_DDP, Candidate, candidate_of
from autosync.search.trial_runner import ComparingService
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import parse_cluster
from autosync.specs.model import SCHEMA_KIND, SCHEMA_VERSION, ModelSpec
from autosync.trials.contestant import Contestant
from autosync.trials.service import StepSamples, TrialFailed

DOUBTFUL = frozenset({"busy_machine", "drifting_machine", "stopped_early"})
"""The flags of doubtful measurements. Among several records of one strategy, those with such a flag are used last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One record for each strategy by its id, also for stock DDP, with the model and cluster of the records."""

    model: ModelSpec
    cluster: ClusterSpec
    records: Mapping[str, Record]

    @property
    def candidates(self) -> list[Candidate]:
        """The candidates that have a strategy, so without stock DDP."""
        return [candidate_of(record) for record in self.records.values() if record.strategy is not None]


def read_pool(source: str, *, model: str | None = None, cluster: str | None = None) -> Pool:
    """Return the pool of a study or dataset. With several models or clusters in it, the names select one."""
    path = Path(source) if Path(source).exists() else find_study(source)
    opened = Dataset(path)
    problems: list[Problem] = []
    records = list(opened.records(problems.append))
    if problems:
        raise DocumentError(first_problems(problems))
    names = {_whom(record): (record.model_name, record.cluster_name) for record in records}
    found = [whom for whom, pair in names.items() if model in {None, pair[0]} and cluster in {None, pair[1]}]
    if len(found) != 1:
        what = f"{source} has records of {len(found)} such models on clusters"
        pairs = ", ".join(f"{name} on {where}" for name, where in names.values()) or "none"
        raise InputError(what, rule="a search is replayed for one model on one cluster", hint=f"it has {pairs}")
    here = [record for record in records if _whom(record) == found[0]]
    if not any(record.strategy is None for record in here):
        rule = "stock DDP, which all else is held against, is one of the records"
        raise InputError(f"{source} has no record of stock DDP on {here[0].cluster_name}", rule=rule)
    specs = {spec.spec_id: spec for spec in opened.specs()}
    by_fingerprint = {spec.fingerprint: spec for spec in specs.values()}
    last = here[-1]
    return Pool(
        model=_model(specs.get(last.model_spec or "") or by_fingerprint.get(last.model_fingerprint), source),
        cluster=_cluster(specs.get(last.cluster_spec or "") or by_fingerprint.get(last.cluster_fingerprint), source),
        records=_one_each(here),
    )


def _whom(record: Record) -> tuple[str, str]:
    """Return what identifies the model and the cluster of a record; equal names are not enough.

    Fingerprints tell whether strategies mean the same, and specs also how fast links are, so specs come first.
    """
    return record.model_spec or record.model_fingerprint, record.cluster_spec or record.cluster_fingerprint


def _one_each(records: Sequence[Record]) -> dict[str, Record]:
    """Return the best record of each strategy: measured before failed, then without doubtful flags, then the latest."""
    found: dict[str, Record] = {}
    for record in records:
        if record.failure is not None and record.failure.is_infrastructure:
            # A failure of the infrastructure says nothing about the strategy.
            continue
        key = record.strategy_id or record.origin.rpartition(":")[2]
        if key not in found or _worth(record) >= _worth(found[key]):
            found[key] = record
    return found


def _worth(record: Record) -> int:
    if record.measurement is None:
        return 0
    return 1 if DOUBTFUL.intersection(record.measurement.flags) else 2


def _model(spec: Spec | None, source: str) -> ModelSpec:
    if spec is None:
        raise _without_spec("model", source)
    return parse(without_file(dict(spec.fields)), kind=SCHEMA_KIND, version=SCHEMA_VERSION, into=ModelSpec)


def _cluster(spec: Spec | None, source: str) -> ClusterSpec:
    if spec is None:
        raise _without_spec("cluster", source)
    return parse_cluster(without_file(dict(spec.fields)))


def _without_spec(what: str, source: str) -> InputError:
    rule = "a pool comes with its model and its cluster"
    return InputError(f"{source} has no spec of the {what}", rule=rule, hint=file_hint(source))


class RecordedService(ComparingService):
    """A trial service that runs nothing: contestants repeat the steps of their records."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._at: dict[str, tuple[Measurement, int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def prepare(self, contestant: Contestant) -> None:
        record = self._record(contestant)
        if record is None:
            raise TrialFailed("refused", f"{contestant.name} is not in the recorded pool")
        if record.measurement is None:
            failure: Failure | None = record.failure
            assert failure is not None, "a record has a measurement or a failure"
            raise TrialFailed(failure.kind, failure.message, blame="strategy")
        self._at[contestant.name] = (record.measurement, 0)

    def run(self, name: str, num_steps: int, *, settle: bool = False) -> StepSamples:  # noqa: ARG002 - nothing runs on
        measured, begin = self._at[name]
        self._at[name] = (measured, begin + num_steps)
        ranks = (itertools.cycle(seconds) for seconds in measured.step_seconds)
        return StepSamples(
            step_seconds=tuple(tuple(itertools.islice(steps, begin, begin + num_steps)) for steps in ranks),
            cpu_share=measured.cpu_share or 0.0,
            bytes_sent=_times(measured.bytes_sent, num_steps),
            bytes_received=_times(measured.bytes_received, num_steps),
            peak_memory_bytes=measured.peak_memory_bytes,
        )

    def difference(self, first: str, second: str) -> float:
        raise TrialFailed("refused", f"{first} and {second} are recorded: their parameters are not known")

    def timeline(self, name: str) -> str:
        raise TrialFailed("refused", f"{name} is recorded: it has no timeline")

    def release(self, name: str) -> None:
        self._at.pop(name, None)

    def close(self) -> None:
        self._at.clear()

    def _record(self, contestant: Contestant) -> Record | None:
        if contestant.bundle is None:
            return self._pool.records.get(STOCK_DDP.strategy_id) if contestant.ddp.is_stock else None
        assert not isinstance(contestant.bundle, str | Path), "a search hands bundles over as they are"
        return self._pool.records.get(contestant.bundle.strategy_id)


def _times(counts: Sequence[int] | None, num_steps: int) -> tuple[int, ...] | None:
    return None if counts is None else tuple(count * num_steps for count in counts)
