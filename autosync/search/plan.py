"""What a tuning run is about to start and to try: everything read and checked, nothing started, nothing written.

`tune` begins with such a plan and then acts; a dry run shows it. A new study, one that is resumed and one that is
replayed differ here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autosync.datasets.storage import absolute, without_password
from autosync.errors import InputError
from autosync.launchers.request import LaunchRequest
from autosync.search.candidates import STOCK_DDP, Candidate, known_candidates
from autosync.search.domain import PoolDomain, SpaceDomain
from autosync.search.pool import Pool, RecordedService, read_pool
from autosync.search.progress import SILENT, Progress
from autosync.search.proposers.catalogue import open_proposer
from autosync.search.proposers.interface import Domain, Ground
from autosync.search.rounds import first_round, predicted
from autosync.search.study import Study, begin_study, resume_study
from autosync.search.study_folder import (
    CHANGEABLE,
    StudyFolder,
    StudySettings,
    check_name,
    known_study_folder,
    new_study_folder,
    read_settings,
)
from autosync.search.target import DdpDomain, ddp_limits
from autosync.search.trial import ComparingService, Trials
from autosync.simulators.catalogue import open_simulator
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model, model_of, split_dilation
from autosync.specs.task_file import is_task, load_task
from autosync.strategy.space import Limits, Space
from autosync.trials.others import Others
from autosync.trials.ranks import plan_launch
from autosync.trials.service import TrialService

SCREEN = "analytical"
"""The quick simulator that finds, among many strategies, those with which the precise one begins."""

NUM_SCREENED = 2500
NUM_SIMULATED = 1000
FEWEST_SIMULATED = 96
LARGE = 250
"""For each round. The precise simulator takes the longer the more variables and nodes there are: where their product is
above `LARGE` it is asked about fewer in proportion, so that a round does not take minutes."""

THOROUGHNESS = 5
"""So many times as many where nothing will be tried: then one round is all the search there is."""

PRIOR_SIMULATOR = "learned"
"""Predicts where there are records of others to learn from and nobody else is named."""

SHIPPED_PRIOR = "shipped"
"""As a prior: what was learned from the records that ship."""

HEEDLESS = frozenset({"analytical", "timeline"})
"""Simulators of ours that learn nothing from a prior."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningPlan:
    """What is tuned, where, in which folder, and what the cluster's launcher would start for it (in a replay nothing).

    `storage` is the whole URL of the study's storage, `pool` what a replay takes its measurements from.
    """

    settings: StudySettings
    model: ModelSpec
    cluster: ClusterSpec
    folder: StudyFolder
    is_new: bool
    storage: str | None = None
    pool: Pool | None = None
    request: LaunchRequest | None = None

    def open_study(self) -> Study:
        """Begin the study, or open it again."""
        if self.is_new:
            return begin_study(self.folder, self.model, self.cluster, self.settings, storage=self.storage)
        return resume_study(self.folder, self.model, self.cluster, storage=self.storage)

    def service(self) -> AbstractContextManager[ComparingService]:
        """Who runs the trials."""
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

    def trials(self, study: str, service: ComparingService) -> Trials:
        """How each strategy is tried, and what its record is to say."""
        return Trials(
            study=study,
            service=service,
            model=self.model,
            cluster=self.cluster,
            effort=self.settings.effort,
            target=self.settings.target,
            **self.circumstances(),
        )

    def circumstances(self) -> Mapping[str, Any]:
        """What records say of the trials beside what was tried."""
        if self.pool is not None:
            one = next(iter(self.pool.records.values()))
            return {"is_replayed": one.compute == "replayed", "is_recorded": True, "dilation": one.dilation}
        # Elsewhere ranks are no children of this process, or not on this machine.
        is_here = self.cluster.launcher in {"local", "testbed"}
        return {
            "is_replayed": not is_task(self.settings.task),
            "dilation": split_dilation(self.settings.task)[1] or 1.0,
            "others_share": Others().share if is_here else None,
        }

    def ground(self) -> Ground:
        """What is searched, and who predicts."""
        allow, target = self.settings.allow, self.settings.target
        limits = Limits(allow=allow) if target == "autosync" else ddp_limits(allow)
        space = Space(model=self.model, cluster=self.cluster, limits=limits)
        domain: Domain = SpaceDomain(space=space)
        if target == "ddp":
            domain = DdpDomain(model=self.model, cluster=self.cluster, allow=limits.allow)
        if self.pool is None:
            known = list(known_candidates(self.model, self.cluster, domain.contains))
        else:
            candidates = [one for one in self.pool.candidates if one.strategy and _may_be_tried(one, domain, limits)]
            if not candidates:
                raise InputError("the pool has no strategy that may be tried", rule="exact ones, or --allow")
            domain = PoolDomain(space, [one.strategy for one in candidates if one.strategy is not None])
            known = [one for one in candidates if one.origin.startswith("preset:")]
        ground = Ground(
            model=self.model,
            cluster=self.cluster,
            domain=domain,
            limits=limits,
            known=tuple(known),
            **simulators(self.settings.simulator, self.model, self.cluster, prior=prior_of(self.settings.prior)),
        )
        if self.settings.num_trials == 0:
            return replace(ground, num_simulated=THOROUGHNESS * ground.num_simulated)
        return ground

    def first(self, count: int) -> list[Candidate]:
        """What would be tried first, of a study that is new; without trials, what would be proved."""
        if not self.is_new:
            return []
        ground, settings = self.ground(), self.settings
        proposer = open_proposer(settings.proposer, ground)
        if settings.num_trials == 0:
            num_finalists = settings.effort.num_predicted
            return predicted(proposer, num_finalists, ground.simulator, seed=settings.seed)[:count]
        num_left = settings.num_trials - 1
        followers = first_round(proposer, num_left, seed=settings.seed) if num_left and count > 1 else []
        return [STOCK_DDP, *followers][:count]


def plan_tuning(
    *,
    model: str | None,
    cluster: str | None,
    study: str | None,
    settings: Mapping[str, Any],
    storage: str | None = None,
    resume: str | None = None,
    replay: str | None = None,
    progress: Progress = SILENT,
) -> TuningPlan:
    """Read and check everything. A task is profiled, for what is tried depends on it.

    `settings` are those of `StudySettings` that the user gave, None where not; a study that is resumed keeps those that
    it was begun with, but for those of `CHANGEABLE`.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    storage = None if storage is None else absolute(storage)
    if resume is not None:
        return _resumed(resume, given, storage)
    if study is not None:
        check_name(study)
    # What ships has seen the records that ship: a replay of them would be told the answers.
    if not given.keys() & {"prior", "simulator"} and replay is None and ships():
        given["prior"] = SHIPPED_PRIOR
    if "prior" in given:
        given.setdefault("simulator", PRIOR_SIMULATOR)
        _check_prior(given["prior"], given["simulator"])
    chosen = {**given, "storage": None if storage is None else without_password(storage)}
    if replay is not None:
        pool = read_pool(replay, model=model, cluster=cluster)
        return _of_pool(pool, new_study_folder(study, pool.model, pool.cluster), {**chosen, "replay": replay}, storage)
    if model is None or cluster is None:
        missing = "MODEL" if model is None else "--cluster"
        raise InputError(f"{missing} is missing", rule="a new study needs a model and a cluster")
    cluster_spec = load_cluster(cluster)
    # Refuses a cluster that cannot be started before a task is run.
    plan_launch(cluster_spec, Path())
    progress.note(f"profiling {model}" if is_task(model) else f"reading {model}")
    spec = model_of(model)
    folder = new_study_folder(study, spec, cluster_spec)
    return TuningPlan(
        settings=StudySettings(name=folder.path.name, task=model, cluster=cluster, **chosen),
        model=spec,
        cluster=cluster_spec,
        folder=folder,
        is_new=True,
        storage=storage,
        request=plan_launch(cluster_spec, folder.logs / "ranks-1")[1],
    )


def _of_pool(pool: Pool, folder: StudyFolder, chosen: Mapping[str, Any], storage: str | None) -> TuningPlan:
    """A new study of what was measured once."""
    return TuningPlan(
        settings=StudySettings(name=folder.path.name, task=pool.model.name, cluster=pool.cluster.name, **chosen),
        model=pool.model,
        cluster=pool.cluster,
        folder=folder,
        is_new=True,
        storage=storage,
        pool=pool,
    )


def simulators(name: str, model: ModelSpec, cluster: ClusterSpec, *, prior: Path | None = None) -> dict[str, Any]:
    """The fields of a `Ground` that are about prediction: by this simulator, with the screen in front of it."""
    found: dict[str, Any] = {"simulator": open_simulator(name, model, cluster, prior=prior)}
    if name == SCREEN:
        return {**found, "num_simulated": NUM_SCREENED}
    screen = open_simulator(SCREEN, model, cluster)
    size = max(1.0, len(model.variables) * len(cluster.nodes) / LARGE)
    num_simulated = max(FEWEST_SIMULATED, round(NUM_SIMULATED / size))
    return {**found, "num_simulated": num_simulated, "screen": screen, "num_screened": NUM_SCREENED}


def prior_of(text: str | None) -> Path | None:
    """Where the records lie that a prior names; None where there is none, or where those that ship are meant."""
    return None if text in {None, SHIPPED_PRIOR} else Path(str(text))


def ships() -> bool:
    """Whether records ship that were learned from, with the simulators as they are."""
    # Loads XGBoost.
    from autosync.simulators.learned.boosted import UNTAUGHT
    from autosync.simulators.learned.simulators import shipped_ranker

    return shipped_ranker() is not UNTAUGHT


def _check_prior(prior: str, simulator: str) -> None:
    """Refuse a prior that nobody would look at."""
    if simulator in HEEDLESS:
        rule = f"a prior needs a simulator that learns, such as {PRIOR_SIMULATOR}"
        raise InputError(f"the simulator {simulator} learns nothing from --prior", rule=rule, hint="no --simulator")
    if prior != SHIPPED_PRIOR:
        if not Path(prior).exists():
            rule = f"a dataset, a folder that training has saved, or {SHIPPED_PRIOR}"
            raise InputError(f"--prior {prior}: there is no such file or folder", rule=rule)
        return
    if simulator != PRIOR_SIMULATOR:
        raise InputError(f"nothing ships for the simulator {simulator}", rule=f"--prior {SHIPPED_PRIOR} is for learned")
    if not ships():
        rule = "what ships was learned with the simulators that it corrects"
        raise InputError("nothing ships that fits this version", rule=rule, hint="--prior RECORDS")


def _resumed(name: str, settings: Mapping[str, Any], storage: str | None) -> TuningPlan:
    """A study that goes on, by what stands in its folder."""
    folder = known_study_folder(name)
    begun = read_settings(folder)
    given = {key: settings[key] for key in CHANGEABLE if settings.get(key) is not None}
    if storage is not None and (begun.storage is None or without_password(storage) != begun.storage):
        where = begun.storage or f"the journal in {folder.path}"
        rule = "a study that is resumed stays where it was begun"
        raise InputError(f"the trials of {name} are in {where}", rule=rule, hint="leave out --storage")
    model, cluster = load_model(str(folder.model)), load_cluster(str(folder.cluster))
    if begun.replay is None and is_task(begun.task):
        # Told here: ranks that cannot load it would count as failures of one strategy after the other.
        load_task(begun.task)
    pool = None if begun.replay is None else read_pool(begun.replay, model=model.name, cluster=cluster.name)
    return TuningPlan(
        settings=replace(begun, **given),
        model=model,
        cluster=cluster,
        folder=folder,
        is_new=False,
        storage=storage or begun.storage,
        pool=pool,
        request=None if pool else plan_launch(cluster, folder.logs / "ranks-1")[1],
    )


def _may_be_tried(candidate: Candidate, domain: Domain, limits: Limits) -> bool:
    """Whether a recorded strategy is of the classes that are allowed, and of what the target can express."""
    assert candidate.strategy is not None, "asked of strategies of ours"
    is_ours = isinstance(domain, SpaceDomain) or domain.contains(candidate.strategy)
    return is_ours and set(candidate.strategy.classes) <= {"exact", *limits.allow}
