"""A running study: it holds its folder, and its trial service starts ranks when the first trial needs them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from autosync.errors import OperationError
from autosync.search.own_cost import TimedService
from autosync.search.progress import ProgressListener
from autosync.search.study import Study
from autosync.search.trial_runner import TrialRunner
from autosync.search.tuning_plan import TuningPlan
from autosync.simulators.compile_notice import compiling_is_told


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStudy:
    """An open study, the runner of its trials, and the service that the runner uses."""

    study: Study
    trials: TrialRunner
    service: TimedService


@contextmanager
def running(plan: TuningPlan, progress: ProgressListener) -> Iterator[RunningStudy]:
    """Open a planned study, and end its ranks afterwards.

    After an error or interruption, say where the study is kept.
    """
    num_kept = 0
    try:
        with plan.open_study() as study, plan.service() as ranks, compiling_is_told(progress.now):
            service = TimedService(ranks)
            try:
                yield RunningStudy(study=study, trials=plan.trials(study.name, service), service=service)
            except KeyboardInterrupt:
                num_kept = len(study.searched())
                raise
    except OperationError as error:
        if not plan.folder.is_begun:
            raise
        raise OperationError(f"{error} (the study is kept in {plan.folder.path})") from error
    except KeyboardInterrupt:
        kept = "1 trial is" if num_kept == 1 else f"{num_kept or 'no'} trials are"
        progress.note(f"{kept} kept in {plan.folder.path}")
        if plan.folder.summary.is_file():
            progress.note(f"the answer so far: autosync show {plan.folder.handle}")
        if plan.folder.settings.is_file():
            progress.note(f"to go on: {_resume_command(plan)}")
        raise


def _resume_command(plan: TuningPlan) -> str:
    """Return the command that goes on with a study. A storage with a password has to be named again."""
    command = ["autosync", "tune", "--resume", plan.folder.handle]
    storage = " --storage URL" if plan.storage is not None and plan.storage != plan.settings.storage else ""
    return shlex.join(command) + storage
