"""Starts a script or a task on the ranks of a cluster, and gathers the notes of each rank."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autosync import documents
from autosync.doctor.evidence import KIND, VERSION, Evidence, RankEvidence
from autosync.doctor.post import BUDGET_VARIABLE, MODEL_VARIABLE, STEPS_VARIABLE, TASK_VARIABLE, Mailbox
from autosync.errors import AutosyncError, OperationError
from autosync.launchers.environment import python_of
from autosync.launchers.request import LaunchRequest, TrainingScript
from autosync.launchers.script_run import ScriptRun, plan_script
from autosync.specs.cluster import ClusterSpec

_RANK = "autosync.doctor.rank"
_TASK_PROGRAM = ("-m", "autosync.doctor.task_program")
_KILL_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The program to watch: a command (`train.py ARGS`), a task (`FILE.py[:NAME]`), or the file of a model spec."""

    command: tuple[str, ...] = ()
    task: str | None = None
    model_file: Path | None = None


def plan(cluster: ClusterSpec, watched: Watched, *, num_steps: int, seconds: float) -> TrainingScript:
    """Return the script that runs on every rank."""
    variables = {STEPS_VARIABLE: str(num_steps), BUDGET_VARIABLE: f"{seconds:g}"}
    if watched.task is not None:
        path, colon, name = watched.task.partition(":")
        variables[TASK_VARIABLE] = f"{Path(path).resolve()}{colon}{name}"
    command = watched.command or _TASK_PROGRAM
    return TrainingScript(
        command=(python_of(cluster), "-P", "-m", _RANK, *command),
        environment=variables,
        files={} if watched.model_file is None else {MODEL_VARIABLE: watched.model_file},
    )


def gather(
    cluster: ClusterSpec,
    watched: Watched,
    *,
    num_steps: int,
    seconds: float,
    folder: Path,
    progress: Callable[[str], None] = lambda _: None,
) -> Evidence:
    """Run stock DDP for some steps, and return the notes of the ranks. No process is left behind."""
    script = plan(cluster, watched, num_steps=num_steps, seconds=seconds)
    plan_script(cluster, script, folder)
    mailbox = Mailbox(cluster.num_workers)
    run = ScriptRun(cluster, script, folder, show=lambda line: _take(mailbox, line))
    late: list[bool] = []
    timers: list[threading.Timer] = []

    def started(_: LaunchRequest) -> None:
        progress(f"watching {num_steps} steps of stock DDP on {cluster.num_workers} ranks")
        timers.extend(_limit(run, seconds, late))

    try:
        outcome = run.run(started=started)
    finally:
        for timer in timers:
            timer.cancel()
    answers = mailbox.documents()
    if late and len(answers) < cluster.num_workers:
        raise OperationError(
            f"the ranks did not finish their steps within {seconds:g} s: give more time, or fewer steps"
        )
    if outcome.code and len(answers) < cluster.num_workers:
        raise OperationError("; ".join(outcome.words) or f"the script ended with exit code {outcome.code}")
    return evidence_from(cluster, mailbox)


def evidence_from(cluster: ClusterSpec, mailbox: Mailbox) -> Evidence:
    """Return the evidence that ranks have sent; raise OperationError if a rank's cannot be read or is missing."""
    answers = mailbox.documents()
    return evidence_of(cluster, [_parsed(answers[rank]) for rank in sorted(answers)])


def _take(mailbox: Mailbox, line: str) -> None:
    mailbox.take(line)


def _limit(run: ScriptRun, seconds: float, late: list[bool]) -> list[threading.Timer]:
    """Start timers that end the ranks when their time is over, first gently, then by force."""

    def end() -> None:
        late.append(True)
        run.ask_to_end(signal.SIGTERM)

    timers = [threading.Timer(seconds, end), threading.Timer(seconds + _KILL_SECONDS, end)]
    for timer in timers:
        timer.daemon = True
        timer.start()
    return timers


def _parsed(document: object) -> RankEvidence:
    try:
        return documents.parse(documents.without_file(document), kind=KIND, version=VERSION, into=RankEvidence)
    except AutosyncError as error:
        raise OperationError(f"a rank's evidence cannot be read: {error}") from error


def evidence_of(cluster: ClusterSpec, ranks: Sequence[RankEvidence]) -> Evidence:
    """Return the evidence of all workers; refuse an incomplete one."""
    if [one.rank for one in ranks] != list(range(cluster.num_workers)):
        missing = sorted(set(range(cluster.num_workers)) - {one.rank for one in ranks})
        raise OperationError(f"rank {missing[0]} has told nothing of its steps")
    nodes = tuple(cluster.nodes[cluster.ranks[rank].node].name for rank in range(cluster.num_workers))
    # A script may end a step earlier on one rank than on another.
    common, rank = min((len(one.steps), one.rank) for one in ranks)
    if common == 0:
        raise OperationError(f"rank {rank} has finished no step that can be judged")
    return Evidence(ranks=tuple(replace(one, steps=one.steps[:common]) for one in ranks), nodes=nodes)
