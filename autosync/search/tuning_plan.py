"""A tuning plan: a study that will start or continue. `planning` makes it, `tune` acts on it, a dry run shows it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from autosync.launchers.request import LaunchRequest
from autosync.search.candidates import STOCK_DDP, Candidate
from autosync.search.ground_builder import build_ground
from autosync.search.pool import Pool, RecordedService
from autosync.search.prepared_trial import TrialPreparer
from autosync.search.proposers.catalogue import open_proposer
from autosync.search.proposers.interface import Ground
from autosync.search.rounds import first_round, predicted
from autosync.search.stage_check import why_undivided_study
from autosync.search.study import Study, begin_study, resume_study
from autosync.search.study_folder import StudyFolder, StudySettings
from autosync.search.trial_runner import ComparingService, TrialRunner
from autosync.specs.background_load import BackgroundLoad
from autosync.specs.cluster import ClusterSpec
from autosync.specs.consent import FileAction, remember
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import split_dilation
from autosync.specs.task_file import is_task
from autosync.trials.service import TrialService


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningPlan:
    """A study to start or continue, and the launch that the cluster's launcher would make (None in a replay).

    `storage` is the full URL of the study's storage, and `pool` has the measurements of a replay. `named` lists what
    would be run or contacted: for a new study what the user typed, for a resumed one what its folder names.
    """

    settings: StudySettings
    preparer: TrialPreparer
    folder: StudyFolder
    is_new: bool
    storage: str | None = None
    pool: Pool | None = None
    request: LaunchRequest | None = None
    named: tuple[FileAction, ...] = ()

    @property
    def model(self) -> ModelSpec:
        return self.preparer.model

    @property
    def cluster(self) -> ClusterSpec:
        return self.preparer.cluster

    @property
    def why_undivided(self) -> str:
        """Why the study searches no strategies with stages; empty if it does."""
        return why_undivided_study(self.settings, self.model, self.cluster)

    @property
    def told_undivided(self) -> str:
        """What the user is told about that; empty where nobody would expect stages."""
        settings = self.settings
        is_expected = settings.target == "autosync" and not settings.is_script and self.cluster.num_workers > 1
        return self.why_undivided if is_expected and self.pool is None else ""

    def open_study(self) -> Study:
        """Begin the study, or open it again."""
        if self.is_new:
            # The user typed these names, so consent is not needed when the study is resumed or its bundle launched.
            remember(self.named)
            return begin_study(self.folder, self.model, self.cluster, self.settings, storage=self.storage)
        return resume_study(self.folder, self.model, self.cluster, storage=self.storage)

    def service(self) -> AbstractContextManager[ComparingService]:
        """Return the service that runs the trials."""
        if self.pool is not None:
            return RecordedService(self.pool)
        return TrialService(
            target=self.settings.task,
            model=self.model,
            cluster=self.cluster,
            folder=self.folder.logs,
            seed=self.settings.seed,
            timeout_seconds=self.settings.trial_timeout_seconds,
        )

    def trials(self, study: str, service: ComparingService) -> TrialRunner:
        """Return the runner of the trials, with everything that their records need."""
        return TrialRunner(
            study=study,
            service=service,
            preparer=self.preparer,
            effort=self.settings.effort,
            target=self.settings.target,
            searches_stages=not self.why_undivided,
            **self.circumstances(),
        )

    def circumstances(self) -> Mapping[str, Any]:
        """Return the fields of the trial runner that describe how the trials run."""
        if self.pool is not None:
            record = next(iter(self.pool.records.values()))
            return {"is_replayed": record.compute == "replayed", "is_recorded": True, "dilation": record.dilation}
        return {
            "is_replayed": not is_task(self.settings.task),
            "dilation": split_dilation(self.settings.task)[1] or 1.0,
            # Ranks that run elsewhere do not share this machine's processors.
            "others_share": BackgroundLoad().share if self.cluster.is_one_machine else None,
        }

    def ground(self) -> Ground:
        """Return the ground for a proposer, with the simulators that predict for it."""
        return build_ground(self.settings, self.preparer, self.pool)

    def first(self, count: int) -> list[Candidate]:
        """Return the first candidates that a new study would try; without trials, those that it would prove."""
        if not self.is_new:
            return []
        if self.settings.budget_seconds == 0:
            return [STOCK_DDP][:count]
        ground, settings = self.ground(), self.settings
        proposer = open_proposer(settings.proposer, ground)
        if settings.num_trials == 0:
            num_finalists = settings.effort.num_predicted
            return predicted(proposer, num_finalists, ground.simulator, seed=settings.seed)[:count]
        if settings.training_seconds is not None:
            num_finalists = settings.effort.num_predicted
            return [STOCK_DDP, *predicted(proposer, num_finalists, ground.simulator, seed=settings.seed)][:count]
        num_left = settings.num_trials - 1
        followers = first_round(proposer, num_left, seed=settings.seed) if num_left and count > 1 else []
        return [STOCK_DDP, *followers][:count]
