"""The content of a report on one study: its verdict, its trials, and the specs of its model and cluster.

Everything is read from the study's folder; nothing is run. If the folder has only the verdict, the report is shorter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from autosync.datasets.schema import Record
from autosync.datasets.studies import read_study
from autosync.errors import Problem
from autosync.report.predictions import predicted_seconds
from autosync.search.candidates import candidate_of
from autosync.search.shown_summary import ShownContest, ShownSummary, load_shown
from autosync.search.study_folder import StudyFolder, StudySettings, read_settings
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.bundle import Bundle, load_bundle
from autosync.strategy.representation import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialReport:
    """One trial. `strategy` is None for stock DDP. `elapsed_seconds` counts from the start of the study's first trial.

    `predicted` is the simulator's step time from the specs alone, without any of the study's measurements.
    """

    record: Record
    name: str
    strategy: Strategy | None
    elapsed_seconds: float
    predicted: float | None

    @property
    def seconds(self) -> float | None:
        """The measured step time; None if the trial failed."""
        return None if self.record.measurement is None else self.record.measurement.median_seconds

    @property
    def family(self) -> str:
        """The kinds of synchronisers and codecs, by which trials are grouped, and whether there are stages."""
        if self.strategy is None:
            return "stock DDP"
        kinds = {one.synchroniser.kind for one in self.strategy.messages}
        codecs = {one.codec.kind for one in self.strategy.messages if one.codec is not None}
        stages = ["stages"] if self.strategy.stages else []
        return " + ".join([*stages, *sorted(kinds), *sorted(codecs)])


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyReport:
    """One study. Parts that its folder lacks are None. `left_out` says which trials could not be read."""

    folder: StudyFolder
    summary: ShownSummary
    settings: StudySettings | None
    model: ModelSpec | None
    cluster: ClusterSpec | None
    bundle: Bundle | None
    trials: tuple[TrialReport, ...]
    left_out: tuple[str, ...]

    @property
    def default(self) -> ShownContest:
        """Stock DDP as it ships."""
        return self.summary.contests[0]

    @property
    def winner(self) -> ShownContest:
        return next(one for one in self.summary.contests if one.name == self.summary.winner.name)

    def trial_of(self, contest: ShownContest) -> TrialReport | None:
        """Return the measured trial of a contestant's strategy; None if there is none."""
        alike = (one for one in self.trials if one.record.strategy_id == contest.strategy_id)
        return next((one for one in alike if one.seconds is not None), None)

    @property
    def num_samples(self) -> int | None:
        """The examples of one step on all ranks; None if the model spec lacks a batch size."""
        if self.model is None or self.cluster is None or self.model.batch_size == 1:
            return None
        return self.model.batch_size * self.model.accumulation_steps * self.cluster.num_workers


def read_study_report(folder: StudyFolder, records: Sequence[Record] | None = None) -> StudyReport:
    """Return the report of a finished study. Without `records`, its trials are read from its storage."""
    summary = load_shown(folder)
    problems: list[Problem] = []
    if records is None:
        records = list(read_study(folder.path, report=problems.append)) if folder.settings.is_file() else []
    model = load_model(str(folder.model)) if folder.model.is_file() else None
    cluster = load_cluster(folder.cluster) if folder.cluster.is_file() else None
    return StudyReport(
        folder=folder,
        summary=summary,
        settings=read_settings(folder) if folder.settings.is_file() else None,
        model=model,
        cluster=cluster,
        bundle=load_bundle(folder.best) if folder.best.is_file() else None,
        trials=tuple(_trials(records, model, cluster)),
        left_out=tuple(map(str, problems)),
    )


def _trials(records: Iterable[Record], model: ModelSpec | None, cluster: ClusterSpec | None) -> Iterable[TrialReport]:
    ordered = sorted(records, key=lambda record: record.trial)
    candidates = {record.trial: candidate_of(record) for record in ordered}
    predicted: Mapping[int, float] = {}
    if model is not None and cluster is not None:
        strategies = {number: one.strategy for number, one in candidates.items()}
        predicted = predicted_seconds(strategies, model, cluster)
    starts = {record.trial: datetime.fromisoformat(record.started).timestamp() for record in ordered}
    first = min(starts.values(), default=0.0)
    for record in ordered:
        candidate = candidates[record.trial]
        yield TrialReport(
            record=record,
            name=candidate.name,
            strategy=candidate.strategy,
            elapsed_seconds=starts[record.trial] - first,
            predicted=predicted.get(record.trial),
        )
