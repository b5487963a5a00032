"""What a tuning run is about to start and to try: everything read and checked, nothing started, nothing written.

`tune` begins with such a plan and then acts; a dry run shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autosync.launchers.request import LaunchRequest
from autosync.search.candidates import Candidate, candidates
from autosync.search.progress import SILENT, Progress
from autosync.search.study import StudyFolder, check_name, new_study_folder
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import model_of
from autosync.specs.task_file import is_task
from autosync.trials.ranks import plan_launch


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningPlan:
    """What is tuned, where, in which folder, and what the cluster's launcher would start for it."""

    target: str
    model: ModelSpec
    cluster: ClusterSpec
    is_replayed: bool
    folder: StudyFolder
    request: LaunchRequest
    seed: int

    def candidates(self) -> Iterator[Candidate]:
        """What is tried, in this order."""
        return candidates(self.model, self.cluster, self.seed)


def plan_tuning(*, model: str, cluster: str, study: str | None, seed: int, progress: Progress = SILENT) -> TuningPlan:
    """Read and check everything. A task is profiled, for what is tried depends on it."""
    if study is not None:
        check_name(study)
    cluster_spec = load_cluster(cluster)
    # Refuses a cluster that cannot be started before a task is run.
    plan_launch(cluster_spec, Path())
    is_replayed = not is_task(model)
    progress.note(f"reading {model}" if is_replayed else f"profiling {model}")
    spec = model_of(model)
    folder = new_study_folder(study, spec, cluster_spec)
    _, request = plan_launch(cluster_spec, folder.logs / "ranks-1")
    return TuningPlan(
        target=model,
        model=spec,
        cluster=cluster_spec,
        is_replayed=is_replayed,
        folder=folder,
        request=request,
        seed=seed,
    )
