"""One trial: a candidate becomes a job, the job's outcome a record."""

from __future__ import annotations

import datetime as dt
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autosync.datasets.schema import Failure, Measurement, Record
from autosync.plan.identity import plan_id
from autosync.plan.lowering import lower
from autosync.search.candidates import Candidate
from autosync.search.study import StudyFolder
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.bundle import Bundle, save_bundle
from autosync.strategy.files import dump_strategy
from autosync.trials.job import Contestant, Job, new_folder
from autosync.trials.run import Failed, Measured, run_job
from autosync.trials.statistics import median_interval, slowest_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """What all trials of a study share."""

    study: str
    folder: StudyFolder
    task: str
    model: ModelSpec
    cluster: ClusterSpec
    seed: int
    timeout_seconds: float

    def bundle(self, candidate: Candidate) -> Bundle | None:
        """The candidate as a bundle; none for torch's own DDP."""
        if candidate.strategy is None:
            return None
        return Bundle(
            strategy=candidate.strategy,
            model=self.model,
            cluster=self.cluster,
            strategy_id=candidate.strategy_id,
            plan_id=plan_id(lower(candidate.strategy, self.model, self.cluster), self.cluster),
        )

    def contestant(self, candidate: Candidate, folder: Path) -> Contestant:
        """The candidate as a contestant, its bundle in the job's folder."""
        bundle = self.bundle(candidate)
        if bundle is None:
            unused = any(parameter.reason == "unused" for parameter in self.model.untrained)
            return Contestant(name=candidate.strategy_id, find_unused_parameters=unused)
        path = folder / f"{candidate.strategy_id}.yaml"
        save_bundle(path, bundle)
        return Contestant(name=candidate.strategy_id, bundle=str(path.resolve()))

    def run(self, candidate: Candidate, number: int) -> Record:
        """Try a candidate on the cluster."""
        started = dt.datetime.now(tz=dt.UTC)
        folder = new_folder(self.folder.logs, f"trial-{number}")
        job = Job(
            task=self.task,
            contestants=(self.contestant(candidate, folder.path),),
            seed=self.seed,
            timeout_seconds=self.timeout_seconds,
        )
        outcome = run_job(job, self.cluster, folder)
        return self._record(candidate, number, started, job, outcome)

    def _record(
        self, candidate: Candidate, number: int, started: dt.datetime, job: Job, outcome: Measured | Failed
    ) -> Record:
        strategy, bundle = candidate.strategy, self.bundle(candidate)
        measurement = failure = None
        if isinstance(outcome, Failed):
            failure = Failure(kind=outcome.kind, message=outcome.message)
        else:
            measurement = _measurement(candidate, job, outcome)
        return Record(
            study=self.study,
            trial=number,
            origin=candidate.origin,
            model_name=self.model.name,
            model_fingerprint=self.model.fingerprint(),
            cluster_name=self.cluster.name,
            cluster_fingerprint=self.cluster.fingerprint(),
            strategy=None if strategy is None else dump_strategy(strategy),
            strategy_id=None if bundle is None else bundle.strategy_id,
            plan_id=None if bundle is None else bundle.plan_id,
            classes=("exact",) if strategy is None else tuple(sorted(strategy.classes)),
            measurement=measurement,
            failure=failure,
            environment=environment(self.cluster),
            compute="real",
            network="emulated" if self.cluster.launcher == "testbed" else "real",
            started=started.isoformat(timespec="seconds"),
        )


def _measurement(candidate: Candidate, job: Job, outcome: Measured) -> Measurement:
    seconds = outcome.step_seconds[candidate.strategy_id]
    median = median_interval(slowest_rank(seconds))
    return Measurement(
        step_seconds=seconds,
        median_seconds=median.value,
        low_seconds=median.low,
        high_seconds=median.high,
        num_warmup_steps=job.num_warmup_steps,
        peak_memory_bytes=outcome.peak_memory_bytes,
    )


def environment(cluster: ClusterSpec) -> Mapping[str, str]:
    """What a measurement depends on beside model, cluster and strategy."""
    from importlib.metadata import version

    from autosync import __version__

    return {
        "autosync": __version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "kernel": platform.release(),
        "cpu": platform.machine(),
        "backend": cluster.backend,
    }
