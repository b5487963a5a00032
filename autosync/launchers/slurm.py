"""The Slurm launcher: one allocation for all of a tuning run or a training, and in it a step on each node.

Within an allocation (SLURM_JOB_ID is set: a batch script, a shell of salloc's) that one is used. Elsewhere `salloc`
makes one of the cluster's nodes, which lasts as long as it is held here and no longer, even if this process is killed:
what salloc runs waits for the end of its stdin. Each step is a minder (`minder`), whose line goes through srun.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from autosync.errors import InputError, OperationError
from autosync.launchers import minded
from autosync.launchers.environment import command_processes, first_node, python_of, script_processes
from autosync.launchers.keeper import Keeper
from autosync.launchers.line import boot_command
from autosync.launchers.minded import MindedProcesses
from autosync.launchers.request import LaunchRequest, Process, Script
from autosync.launchers.shared import Shared
from autosync.launchers.words import no_python
from autosync.specs.cluster import ClusterSpec

OPTIONS_VARIABLE = "AUTOSYNC_SLURM"
"""Options of the allocation beside its nodes: `--partition=gpu --gres=gpu:4 --time=2:00:00`, say."""
JOB_VARIABLE = "SLURM_JOB_ID"

QUERY_SECONDS = 10.0
STATE_SECONDS = 6.0
"""How long Slurm may take to say why a job is ending."""
_ENDING = "COMPLETING"
_WAIT = "echo $SLURM_JOB_ID; exec cat"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRequest(LaunchRequest):
    """A launch in an allocation of a cluster's nodes."""

    cluster: ClusterSpec

    def __str__(self) -> str:
        """The batch script that would do the same, with its steps and their processes as comments."""
        assert self.batch_script is not None, "it is planned with one"
        head, _, command = self.batch_script.rstrip("\n").rpartition("\n")
        return f"{head}\n{self.steps_as_comments()}\n{command}"


class SlurmLauncher:
    """Starts the ranks of a cluster whose hosts are Slurm's node names."""

    control: Literal["loopback", "file", "relayed"] = "relayed"

    def plan(self, cluster: ClusterSpec, command: Sequence[str], logs: Path) -> SlurmRequest:
        """One step a node, and in it one process a rank."""
        return _request(cluster, command_processes(cluster, command, logs), {})

    def plan_script(self, cluster: ClusterSpec, script: Script, logs: Path) -> SlurmRequest:
        """The same with what `torchrun` gives its ranks; the first worker is met at its node's address."""
        address = self.addresses(cluster)[first_node(cluster)]
        return _request(cluster, script_processes(cluster, script, logs, address=address), script.files)

    def addresses(self, cluster: ClusterSpec) -> Mapping[str, str]:
        """As Slurm has them; the hosts' names where it cannot be asked."""
        found = {}
        with contextlib.suppress(OperationError):
            for line in _query("scontrol", "--oneliner", "show", "node", _hosts(cluster)).splitlines():
                facts = dict(word.split("=", 1) for word in line.split() if "=" in word)
                found[facts.get("NodeName", "")] = facts.get("NodeAddr", "")
        return {node.name: found.get(node.host) or node.host for node in cluster.nodes}

    def hold(self, cluster: ClusterSpec) -> contextlib.AbstractContextManager[object]:
        """The allocation. Launches on the cluster share it until this is left."""
        return _held(cluster)

    def start(self, request: LaunchRequest) -> MindedProcesses:
        """Start all steps at once; if one process cannot be started, none is left."""
        assert isinstance(request, SlurmRequest), "a launcher starts what it planned"
        with contextlib.ExitStack() as stack:
            job = stack.enter_context(_held(request.cluster))
            addresses = self.addresses(request.cluster)
            processes = tuple(_in_job(process, job, addresses) for process in request.processes)
            # From here on stopping the launch, which a start that fails does too, gives the allocation back.
            then = stack.pop_all().close
        return minded.start(
            replace(request, processes=processes), explain=lambda process, said: _explain(process, said, job), then=then
        )


def batch_script(cluster: ClusterSpec) -> str:
    """What sbatch takes to run the command line that this is part of in an allocation of its own."""
    ours = [word for word in sys.orig_argv[1:] if word not in ("--dry-run", "--json")]
    options = "".join(f"#SBATCH {option}\n" for option in _allocation(cluster))
    return f"#!/bin/bash\n{options}exec {shlex.join([sys.executable, *ours])}\n"


def _allocation(cluster: ClusterSpec) -> list[str]:
    given = os.environ.get(OPTIONS_VARIABLE, "")
    try:
        more = shlex.split(given)
    except ValueError as error:
        raise InputError(f"{OPTIONS_VARIABLE} is {given!r}: {error}", rule="options as a shell reads them") from None
    return [
        f"--job-name=autosync-{''.join(c if c.isalnum() or c in '-_.' else '-' for c in cluster.name)}",
        f"--nodes={len(cluster.nodes)}",
        f"--nodelist={_hosts(cluster)}",
        "--ntasks-per-node=1",
        "--exclusive",
        *more,
    ]


def _hosts(cluster: ClusterSpec) -> str:
    return ",".join(node.host for node in cluster.nodes)


def _request(cluster: ClusterSpec, processes: Sequence[Process], files: Mapping[str, Path]) -> SlurmRequest:
    boot = ("--unbuffered", "--cpu-bind=none", "--mpi=none", *boot_command(python_of(cluster)))
    return SlurmRequest(
        cluster=cluster,
        minded=True,
        batch_script=batch_script(cluster),
        files=files,
        processes=tuple(
            replace(
                process, reach=("srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={process.host}", *boot)
            )
            for process in processes
        ),
    )


def _in_job(process: Process, job: str, addresses: Mapping[str, str]) -> Process:
    """The process as a step of a job, at the address that Slurm knows its node by."""
    srun, *rest = process.reach
    return replace(process, host=addresses[process.node], reach=(srun, f"--jobid={job}", *rest))


# The allocation.


class _Allocation:
    """Nodes that are ours until this is closed, or this process ends."""

    def __init__(self, cluster: ClusterSpec) -> None:
        if shutil.which("salloc") is None:
            raise OperationError("salloc is not here: the slurm launcher takes Slurm's commands (package slurm-client)")
        self._keeper = Keeper(("salloc", "--no-bell", *_allocation(cluster), "sh", "-c", _WAIT), hear=_tell_of_waiting)
        try:
            self.job = self._await_job()
        except BaseException:
            self.close()
            raise

    def _await_job(self) -> str:
        """Wait until the nodes are there: as long as the queue takes."""
        while not select.select([self._keeper.stdout], [], [], 0.5)[0]:
            pass
        job = self._keeper.stdout.readline().decode().strip()
        if not job:
            said = " ".join(line.removeprefix("salloc: ") for line in self._keeper.last_words())
            raise OperationError(f"Slurm gives no allocation: {said}")
        return job

    def close(self) -> None:
        """Give the nodes back."""
        self._keeper.close()


def _tell_of_waiting(line: str) -> None:
    """What salloc says while one waits is for the user."""
    if "queued" in line or "Pending" in line:
        _LOG.warning("%s", line)


_ALLOCATIONS: Shared[_Allocation] = Shared()


@contextlib.contextmanager
def _held(cluster: ClusterSpec) -> Iterator[str]:
    """The id of the allocation that this process is in or has; one is made where there is none."""
    given = os.environ.get(JOB_VARIABLE)
    if given:
        yield given
        return
    with _ALLOCATIONS.held(_hosts(cluster), lambda: _Allocation(cluster)) as allocation:
        yield allocation.job


def _query(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=QUERY_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OperationError(f"{command[0]} cannot be asked: {error}") from error
    if done.returncode:
        raise OperationError(f"{command[0]}: {' '.join(done.stderr.split())}")
    return done.stdout


def _explain(process: Process, said: str, job: str) -> str:
    """What srun said, and how the job is if that is why."""
    line = " ".join(said.split())
    python = process.reach[-5]
    if python in line and "No such file" in line:
        return no_python(python, line)
    state = _state(job)
    deadline = time.monotonic() + STATE_SECONDS
    while state == _ENDING and time.monotonic() < deadline:
        time.sleep(0.2)
        state = _state(job)
    if state in ("", "RUNNING", "CONFIGURING"):
        return line[-600:]
    return f"the allocation {job} has ended: {'cancelled, or out of time' if state == _ENDING else state}"


def _state(job: str) -> str:
    """How a job is, in Slurm's words; empty where it is not known."""
    try:
        words = _query("scontrol", "--oneliner", "show", "job", job).split()
    except OperationError:
        return ""
    return next((word.removeprefix("JobState=") for word in words if word.startswith("JobState=")), "")
