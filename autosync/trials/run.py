"""Running a job: start its ranks, wait with a limit, and turn what came of it into timings or a failure."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autosync.datasets.schema import FailureKind
from autosync.errors import OperationError
from autosync.launchers import LAUNCHERS
from autosync.launchers.request import Launch, Launcher
from autosync.specs.cluster import ClusterSpec
from autosync.trials.job import Answer, Job, JobFolder

POLL_SECONDS = 0.05
GRACE_SECONDS = 5.0
"""How long the other ranks may go on after one has failed: enough to say what they saw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A job's timings: for each contestant each rank's measured steps; and each rank's peak memory."""

    step_seconds: Mapping[str, tuple[tuple[float, ...], ...]]
    peak_memory_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Why a job has no timings."""

    kind: FailureKind
    message: str


def run_job(job: Job, cluster: ClusterSpec, folder: JobFolder) -> Measured | Failed:
    """Run a job on all workers of a cluster. Never longer than the job's timeout, and nothing is left running."""
    launcher: Launcher = LAUNCHERS.get(cluster.launcher)()
    folder.write_job(job)
    command = (sys.executable, "-m", "autosync.trials.worker", str(folder.path.resolve()))
    request = launcher.plan(cluster, command, folder.path)
    try:
        launch = launcher.start(request)
    except OperationError as error:
        return Failed(kind="launch", message=str(error))
    try:
        in_time = _wait(launch, job.timeout_seconds)
    finally:
        launch.stop()
    answers = [folder.read_answer(rank) for rank in range(cluster.num_workers)]
    return _outcome(job, answers, launch.exit_codes(), in_time=in_time)


def _wait(launch: Launch, timeout_seconds: float) -> bool:
    """Until all ranks have ended, or some time after one has failed; whether it was in time."""
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        codes = launch.exit_codes()
        if all(code is not None for code in codes):
            return True
        if any(code not in (None, 0) for code in codes):
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
            while time.monotonic() < deadline and any(code is None for code in launch.exit_codes()):
                time.sleep(POLL_SECONDS)
            return True
        time.sleep(POLL_SECONDS)
    return False


def _outcome(
    job: Job, answers: Sequence[Answer | None], codes: Sequence[int | None], *, in_time: bool
) -> Measured | Failed:
    told = [answer for answer in answers if answer is not None]
    for kind in ("refused", "raised"):
        for answer in told:
            if answer.error_kind == kind:
                return Failed(kind=answer.error_kind, message=f"rank {answer.rank}: {answer.error}")
    if not in_time:
        return Failed(kind="timeout", message=f"not done within {job.timeout_seconds:g} s")
    silent = [rank for rank, answer in enumerate(answers) if answer is None]
    if silent:
        return Failed(kind="lost_rank", message=f"rank {silent[0]} ended with code {codes[silent[0]]} and no answer")
    names = [contestant.name for contestant in job.contestants]
    return Measured(
        step_seconds={
            name: tuple(answer.timings[position].step_seconds for answer in told) for position, name in enumerate(names)
        },
        peak_memory_bytes=tuple(answer.peak_memory_bytes for answer in told),
    )
