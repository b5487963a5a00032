"""Plans a tuning run: reads and checks everything that the user named, without starting ranks or writing files.

Only this module distinguishes new, resumed and replayed studies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autosync.datasets.storage import absolute, check_storage, without_password
from autosync.datasets.studies import STUDIES_FOLDER, storage_named
from autosync.errors import InputError
from autosync.search.operands import (
    ClusterOperand,
    LauncherOperand,
    ModelOperand,
    cluster_name,
    cluster_spec_of,
    model_name,
    model_spec_of,
)
from autosync.search.pool import read_pool
from autosync.search.prepared_trial import TrialPreparer
from autosync.search.prior import PRIOR_SIMULATOR, SHIPPED_PRIOR, check_prior, prior_ships
from autosync.search.progress import SILENT, ProgressListener
from autosync.search.proposers.catalogue import PROPOSERS
from autosync.search.stage_check import checked_cuts, needs_cuts
from autosync.search.study_folder import (
    CHANGEABLE,
    StudyFolder,
    StudySettings,
    check_name,
    known_study_folder,
    new_study_folder,
    read_settings,
)
from autosync.search.target import check_target
from autosync.search.trust.next_trials import TRAINING_SECONDS
from autosync.search.tuning_plan import TuningPlan
from autosync.simulators.catalogue import SIMULATORS
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.consent import (
    Consent,
    FileAction,
    cluster_actions,
    link_action,
    refuse,
    require,
    storage_actions,
    task_actions,
)
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import check_model_file, load_model
from autosync.specs.profile.quality import profile_warning
from autosync.specs.task import Task
from autosync.specs.task_changes import changed_facts
from autosync.specs.task_file import is_task, load_task
from autosync.trials.ranks import plan_launch


def plan_tuning(
    *,
    model: ModelOperand | None,
    cluster: ClusterOperand | None,
    launcher: LauncherOperand | None = None,
    study: str | None,
    settings: Mapping[str, Any],
    storage: str | None = None,
    resume: str | None = None,
    replay: str | None = None,
    consent: Consent = refuse,
    is_dry: bool = False,
    progress: ProgressListener = SILENT,
) -> TuningPlan:
    """Read and check everything, and return the plan of the tuning run.

    A task is profiled, because the strategies to try depend on its profile.

    `settings` are the fields of `StudySettings` that the user gave; None means not given. A resumed study keeps its
    first settings, except for those of `CHANGEABLE`. Programs and hosts that a study's folder names are run and
    contacted only with `consent`. With `is_dry` none of them is run or contacted.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    for name, registry in (("proposer", PROPOSERS), ("simulator", SIMULATORS)):
        if name in given:
            given[name] = registry.name_of(given[name])
            # Before a task is profiled, which takes long.
            registry.check(given[name])
    choose_end(given, is_new=resume is None)
    if storage is not None:
        storage = absolute(storage)
        # Checked before a task is profiled and before the folder exists.
        check_storage(storage)
    if resume is not None:
        return _resumed(resume, given, storage, consent=consent, is_dry=is_dry)
    if study is not None:
        check_name(study)
    require([*_elsewhere(given.get("prior")), *_elsewhere(replay)], consent)
    given["storage"] = None if storage is None else without_password(storage)
    if replay is not None:
        choose_prior(given, is_replay=True)
        return _replayed(replay, model, cluster, study=study, settings=given, storage=storage)
    if model is None or cluster is None:
        missing = "MODEL" if model is None else "--cluster"
        raise InputError(f"{missing} is missing", rule="a new study needs a model and a cluster")
    return _new(model, cluster, launcher, study=study, settings=given, storage=storage, progress=progress)


def choose_prior(given: dict[str, Any], *, is_replay: bool = False) -> None:
    """Set the prior and its simulator if the user gave none."""
    # The shipped prior learned from the shipped records, so in a replay of those it would know the answers.
    if not given.keys() & {"prior", "simulator"} and not is_replay and prior_ships():
        given["prior"] = SHIPPED_PRIOR
    if "prior" in given:
        given.setdefault("simulator", PRIOR_SIMULATOR)
        check_prior(given["prior"], given["simulator"])


def choose_end(given: dict[str, Any], *, is_new: bool = True) -> None:
    """Set what ends the search: the number of trials if the user gave one, else what further trials are worth."""
    training_seconds = given.get("training_seconds", TRAINING_SECONDS)
    if not 0 < training_seconds < math.inf:
        raise InputError(f"a training of {training_seconds:g} s", rule="a time above 0")
    if "num_trials" not in given:
        if is_new:
            given.setdefault("training_seconds", TRAINING_SECONDS)
        elif "training_seconds" in given:
            # What the study was begun with no longer counts.
            given["num_trials"] = StudySettings.__dataclass_fields__["num_trials"].default
        return
    if "training_seconds" in given:
        rule = "either a number of trials ends the search, or what trials are worth in a training"
        raise InputError("--trials and --training are both given", rule=rule, hint="leave out one")
    given["training_seconds"] = None


def _new(
    model: ModelOperand,
    cluster: ClusterOperand,
    launcher: LauncherOperand | None,
    *,
    study: str | None,
    settings: dict[str, Any],
    storage: str | None,
    progress: ProgressListener,
) -> TuningPlan:
    task, cluster_spec = model_name(model), cluster_spec_of(cluster, launcher)
    # Refuses a cluster that cannot be started, before a task is run.
    plan_launch(cluster_spec, Path())
    if isinstance(model, str):
        check_model_file(model)
    # Looks at the shipped prior, for which simulators may have to be compiled.
    choose_prior(settings)
    progress.note(f"profiling {task}" if is_task(task) else f"reading {task}")
    cuts = is_task(task) and needs_cuts(settings.get("target", "autosync"), cluster_spec)
    spec = model_spec_of(model, cluster_spec, cuts=cuts)
    if cuts:
        spec = checked_cuts(task, spec, cluster_spec)
    if (words := profile_warning(spec)) is not None:
        progress.note(words)
    check_target(settings.get("target", "autosync"), spec)
    folder = new_study_folder(study, spec, cluster_spec)
    return TuningPlan(
        settings=StudySettings(name=folder.path.name, task=task, cluster=cluster_name(cluster), **settings),
        preparer=TrialPreparer(spec, cluster_spec),
        folder=folder,
        is_new=True,
        storage=storage,
        request=plan_launch(cluster_spec, folder.logs / "ranks-1")[1],
        named=(
            *task_actions(task, file=task),
            *cluster_actions(cluster_spec, file=cluster_name(cluster)),
            *storage_actions(settings["storage"], file="--storage"),
        ),
    )


def _elsewhere(source: str | None) -> list[FileAction]:
    """Return the storage outside the study's folder that reading its records would contact, if there is one."""
    if source in {None, SHIPPED_PRIOR}:
        return []
    path = Path(str(source)) if Path(str(source)).exists() else Path(STUDIES_FOLDER) / str(source)
    return storage_named(path)


def _replayed(
    replay: str,
    model: ModelOperand | None,
    cluster: ClusterOperand | None,
    *,
    study: str | None,
    settings: Mapping[str, Any],
    storage: str | None,
) -> TuningPlan:
    """Return the plan of a new study that searches recorded trials."""
    names = (None if model is None else model_name(model), None if cluster is None else cluster_name(cluster))
    pool = read_pool(replay, model=names[0], cluster=names[1])
    check_target(settings.get("target", "autosync"), pool.model)
    folder = new_study_folder(study, pool.model, pool.cluster)
    return TuningPlan(
        settings=StudySettings(
            name=folder.path.name, task=pool.model.name, cluster=pool.cluster.name, replay=replay, **settings
        ),
        preparer=TrialPreparer(pool.model, pool.cluster),
        folder=folder,
        is_new=True,
        storage=storage,
        pool=pool,
    )


def _resumed(
    name: str, settings: Mapping[str, Any], storage: str | None, *, consent: Consent, is_dry: bool
) -> TuningPlan:
    """Return the plan of a study that continues with the settings in its folder."""
    folder = known_study_folder(name)
    begun = read_settings(folder)
    if begun.is_script:
        rule = "the trials of such a study are steps of a training, which has ended"
        hint = begun.tune_command()
        raise InputError(f"{name} tuned a script, and cannot be resumed", rule=rule, hint=hint)
    given = {key: settings[key] for key in CHANGEABLE if key in settings}
    if storage is not None and (begun.storage is None or without_password(storage) != begun.storage):
        where = begun.storage or f"the journal in {folder.path}"
        rule = "a study that is resumed stays where it was begun"
        raise InputError(f"the trials of {name} are in {where}", rule=rule, hint="leave out --storage")
    model, cluster = load_model(str(folder.model)), load_cluster(str(folder.cluster))
    read = [*_elsewhere(begun.prior), *_elsewhere(begun.replay)]
    named = [*read, *_named_by(folder, begun, cluster, is_typed=storage is not None)]
    require(read if is_dry else named, consent)
    if begun.replay is None and is_task(begun.task) and not is_dry:
        # A task that cannot be loaded is refused here: on the ranks it would count as a failure of every strategy.
        _refuse_changed(load_task(begun.task), begun, model)
    pool = None if begun.replay is None else read_pool(begun.replay, model=model.name, cluster=cluster.name)
    return TuningPlan(
        settings=replace(begun, **given),
        preparer=TrialPreparer(model, cluster),
        folder=folder,
        is_new=False,
        storage=storage or begun.storage,
        pool=pool,
        request=None if pool else plan_launch(cluster, folder.logs / "ranks-1")[1],
        named=tuple(named),
    )


def _refuse_changed(task: Task, begun: StudySettings, model: ModelSpec) -> None:
    """Refuse a task that has changed since its study was begun: old and new step times would be compared."""
    for name, now, then in changed_facts(task, model):
        rule = f"the study's trials are of a task whose {name} is {then}"
        hint = begun.tune_command()
        raise InputError(f"the {name} of {begun.task} is {now} now", rule=rule, hint=f"a new study: {hint}")


def _named_by(folder: StudyFolder, begun: StudySettings, cluster: ClusterSpec, *, is_typed: bool) -> list[FileAction]:
    """Return everything that continuing a study would run, contact or write to because its folder names it."""
    settings = str(folder.settings)
    written = [link_action(path, file=str(folder.path), place=name) for name, path in folder.links.items()]
    if not is_typed:
        written += storage_actions(begun.storage, file=settings)
    if begun.replay is not None:
        return written
    return [
        *task_actions(begun.task, file=settings),
        *cluster_actions(cluster, file=str(folder.cluster), place=""),
        *written,
    ]
