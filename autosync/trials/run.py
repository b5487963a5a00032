"""Running a job: start its ranks, wait with a limit, and turn what came of it into timings or a failure."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autosync.datasets.schema import FailureKind
from autosync.errors import OperationError
from autosync.launchers import LAUNCHERS
from autosync.launchers.request import Launch, Launcher, LaunchRequest
from autosync.specs.cluster import ClusterSpec
from autosync.trials.job import Answer, Job, JobFolder

POLL_SECONDS = 0.05
GRACE_SECONDS = 5.0
"""How long the other ranks may go on after one has failed: enough to say what they saw."""

ExitCodes = Sequence[int | None]


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


def plan_launch(cluster: ClusterSpec, folder: Path) -> tuple[Launcher, LaunchRequest]:
    """The launcher of a cluster and what it would start for a job's folder; refuses what it cannot start."""
    launcher: Launcher = LAUNCHERS.get(cluster.launcher)()
    command = (sys.executable, "-m", "autosync.trials.worker", str(folder.resolve()))
    return launcher, launcher.plan(cluster, command, folder)


def run_job(job: Job, cluster: ClusterSpec, folder: JobFolder) -> Measured | Failed:
    """Run a job on all workers of a cluster. Hardly longer than the job's timeout, and nothing is left running."""
    launcher, request = plan_launch(cluster, folder.path)
    folder.write_job(job)
    try:
        launch = launcher.start(request)
    except OperationError as error:
        return Failed(kind="launch", message=str(error))
    try:
        codes = _wait(launch, job.timeout_seconds)
    finally:
        launch.stop()
    return _outcome(job, [folder.read_answer(rank) for rank in range(cluster.num_workers)], codes)


def _wait(launch: Launch, timeout_seconds: float) -> ExitCodes:
    """Until all ranks have ended, or some time after one has failed; the exit codes, None of those that still run."""
    deadline = time.monotonic() + timeout_seconds
    has_failed = False
    while True:
        codes = launch.exit_codes()
        if not has_failed and any(code not in (None, 0) for code in codes):
            has_failed = True
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if None not in codes or time.monotonic() >= deadline:
            return codes
        time.sleep(POLL_SECONDS)


def _outcome(job: Job, answers: Sequence[Answer | None], codes: ExitCodes) -> Measured | Failed:
    """What came of a job: its timings, or the failure that the others followed from."""
    told = [answer for answer in answers if answer is not None]
    errors = sorted((one for one in told if one.error_kind is not None), key=lambda one: one.ended_at_seconds)
    for error in errors:
        if error.error_kind == "refused":
            return Failed(kind="refused", message=f"rank {error.rank}: {error.error}")
    for rank, (answer, code) in enumerate(zip(answers, codes, strict=True)):
        # Before those who raised: a rank that vanishes makes all others raise.
        if answer is None and code is not None:
            return Failed(kind="lost_rank", message=f"rank {rank} ended without an answer: {_how(code)}")
    if errors:
        return Failed(kind="raised", message=f"rank {errors[0].rank}: {errors[0].error}")
    if len(told) < len(answers):
        running = ", ".join(str(rank) for rank, answer in enumerate(answers) if answer is None)
        return Failed(kind="timeout", message=f"not done within {job.timeout_seconds:g} s: rank {running}")
    return Measured(
        step_seconds={
            contestant.name: tuple(answer.timings[position].step_seconds for answer in told)
            for position, contestant in enumerate(job.contestants)
        },
        peak_memory_bytes=tuple(answer.peak_memory_bytes for answer in told),
    )


def _how(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"signal {-code}"
