"""Checks a dataset: its records must fit its models and clusters, and each trial must occur once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from autosync.datasets.facts import Spec, cluster_of_spec, model_of_spec
from autosync.datasets.schema import Record, seconds_of_steps
from autosync.documents import without_file
from autosync.errors import InputError, Problem
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.canonical import strategy_id
from autosync.strategy.files import parse_strategy


class Checker:
    """Checks the records of one dataset, one after another."""

    def __init__(self, specs: Iterable[Spec]) -> None:
        self._specs: dict[str, Spec] = {}
        self._models: dict[str, ModelSpec] = {}
        self._clusters: dict[str, ClusterSpec] = {}
        for spec in specs:
            self._specs[spec.spec_id] = spec
            if spec.kind == "model":
                self._models[spec.spec_id] = model_of_spec(spec)
            else:
                self._clusters[spec.spec_id] = cluster_of_spec(spec)
        self._seen: set[tuple[str, int]] = set()

    def problems(self, record: Record) -> list[Problem]:
        """Return the mistakes of a record; none if it is correct."""
        place = (record.study, "trials", record.trial)
        return [Problem(what=what, rule=rule, path=place) for what, rule in self._findings(record)]

    def _findings(self, record: Record) -> Iterator[tuple[str, str]]:
        number = (record.study, record.trial)
        if number in self._seen:
            yield "another record has the same number", "a study has each trial once"
        self._seen.add(number)
        for kind, spec_id, name, fingerprint in (
            ("model", record.model_spec, record.model_name, record.model_fingerprint),
            ("cluster", record.cluster_spec, record.cluster_name, record.cluster_fingerprint),
        ):
            spec = self._specs.get(spec_id or "")
            if spec is None or spec.kind != kind:
                yield f"its {kind} {name} is not there", "a dataset holds the models and clusters of its records"
            elif (spec.name, spec.fingerprint) != (name, fingerprint):
                yield f"its {kind} is {name}, the spec that it names {spec.name}", "a record is of the specs it names"
        model, cluster = self._models.get(record.model_spec or ""), self._clusters.get(record.cluster_spec or "")
        if model is not None and cluster is not None:
            yield from _strategy_findings(record, model, cluster)
            yield from _measurement_findings(record, cluster)


def _strategy_findings(record: Record, model: ModelSpec, cluster: ClusterSpec) -> Iterator[tuple[str, str]]:
    if record.strategy is None:
        return
    try:
        strategy = parse_strategy(without_file(dict(record.strategy)))
    except InputError as error:
        yield f"its strategy is none: {error.problems[0].what}", error.problems[0].rule
        return
    found = legality.problems(strategy, model, cluster)
    if found:
        yield f"its strategy is not legal: {found[0].what}", found[0].rule
    elif strategy_id(strategy, model, cluster) != record.strategy_id:
        yield f"its strategy is not {record.strategy_id}", "strategy_id is the strategy's"


def _measurement_findings(record: Record, cluster: ClusterSpec) -> Iterator[tuple[str, str]]:
    measurement = record.measurement
    if measurement is None:
        return
    if measurement.num_ranks != cluster.num_workers:
        yield f"{measurement.num_ranks} ranks were measured", f"{cluster.name} has {cluster.num_workers} workers"
    seconds = seconds_of_steps(measurement.step_seconds)
    if not min(seconds) <= measurement.median_seconds <= max(seconds):
        yield f"no step took about the median of {measurement.median_seconds} s", "the median is that of the steps"
