"""The Slurm launcher: one allocation for a whole tuning run or training, and in it a step on each node.

Inside an allocation (SLURM_JOB_ID is set, as in a batch script or a shell of salloc) that allocation is used. Elsewhere
`salloc` allocates the cluster's nodes until they are given back, or until this process ends, even if it is killed: the
command that salloc runs waits for the end of its stdin. Each step is an agent, which srun starts and connects.
"""

from __future__ import annotations

import contextlib
import logging
import os
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
from autosync.launchers import agent_launch
from autosync.launchers.agent_launch import AgentLaunch
from autosync.launchers.agent_link import boot_command, can_read
from autosync.launchers.allocation_process import AllocationProcess
from autosync.launchers.environment import command_processes, first_node, python_of, script_processes
from autosync.launchers.messages import no_python_message
from autosync.launchers.rank_process import JOB_VARIABLE
from autosync.launchers.redaction import Redaction
from autosync.launchers.request import LaunchRequest, Process, TrainingScript, batch_words
from autosync.launchers.shared_resources import SharedResources
from autosync.specs.cluster import ClusterSpec

OPTIONS_VARIABLE = "AUTOSYNC_SLURM"
"""The variable with more options of the allocation, for example `--partition=gpu --time=2:00:00`."""
OF_TASKS = (
    "SLURM_CPUS_PER_GPU",
    "SLURM_CPUS_PER_TASK",
    "SLURM_GPUS",
    "SLURM_GPUS_PER_TASK",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_TRES_PER_TASK",
    "SRUN_CPUS_PER_TASK",
)
"""Variables of a job that srun takes for its own options. An agent is one task, and its ranks need the whole node."""
QUERY_SECONDS = 10.0
STATE_SECONDS = 6.0
"""The time that Slurm has to say why a job is ending."""
_SRUN = ("srun", "--overlap", "--nodes=1", "--ntasks=1")
_ENDING = "COMPLETING"
_NODE_FAILED = "NODE_FAIL"
_WAIT = "echo $SLURM_JOB_ID; exec cat"
_COMMAND = "\nexec "
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRequest(LaunchRequest):
    """A launch in an allocation of a cluster's nodes."""

    cluster: ClusterSpec

    def __str__(self) -> str:
        """Format the batch script that would do the same, with its steps and their processes as comments."""
        assert self.batch_script is not None, "it is planned with one"
        # An argument of the command may have line ends; a line of the head has none.
        head, start, arguments = self.batch_script.rstrip("\n").partition(_COMMAND)
        return f"{head}\n{self.steps_as_comments()}{start}{arguments}"


class SlurmLauncher:
    """Starts the ranks of a cluster whose hosts are Slurm's node names."""

    control: Literal["loopback", "file", "relayed"] = "relayed"
    is_one_machine = False
    is_emulated = False
    way = "through Slurm"
    default_python = sys.executable

    def plan(self, cluster: ClusterSpec, command: Sequence[str], logs: Path) -> SlurmRequest:
        """Plan one step for each node, and in it one process for each rank."""
        return _request(cluster, command_processes(cluster, command, logs), {})

    def plan_script(self, cluster: ClusterSpec, script: TrainingScript, logs: Path) -> SlurmRequest:
        """Plan a user's training with the environment of `torchrun`; ranks meet at the first worker's address."""
        address = self.addresses(cluster)[first_node(cluster)]
        return _request(cluster, script_processes(cluster, script, logs, address=address), script.files)

    def addresses(self, cluster: ClusterSpec) -> Mapping[str, str]:
        """Return Slurm's addresses of the nodes, or their host names if Slurm cannot be asked."""
        found = {}
        with contextlib.suppress(OperationError):
            for line in _query("scontrol", "--oneliner", "show", "node", _hosts(cluster)).splitlines():
                facts = _facts_in(line)
                found[facts.get("NodeName", "")] = facts.get("NodeAddr", "")
        return {node.name: found.get(node.host) or node.host for node in cluster.nodes}

    def hold(self, cluster: ClusterSpec) -> contextlib.AbstractContextManager[object]:
        """Hold the allocation during the block; all launches on the cluster share it."""
        return _held(cluster)

    def start(self, request: LaunchRequest) -> AgentLaunch:
        """Start all steps at once. If one process cannot be started, the others are ended."""
        assert isinstance(request, SlurmRequest), "a launcher starts what it planned"
        with contextlib.ExitStack() as stack:
            job = stack.enter_context(_held(request.cluster))
            addresses = self.addresses(request.cluster)
            processes = tuple(_in_job(process, job, addresses) for process in request.processes)
            # From here on, stopping the launch gives the allocation back. A failed start stops it too.
            then = stack.pop_all().close
        return agent_launch.start(
            replace(request, processes=processes), explain=lambda process, said: _explain(process, said, job), then=then
        )


def batch_script(cluster: ClusterSpec) -> str:
    """Return an sbatch script that runs this command line in a new allocation."""
    # People read and keep the script, so no secret of this command line may be in it.
    hiding = Redaction.of(os.environ)
    options = "".join(f"\n#SBATCH {_sbatch_word(option)}" for option in hiding.words(_allocation(cluster)))
    ours = hiding.words(batch_words(sys.orig_argv[1:]))
    return f"#!/bin/bash{options}{_COMMAND}{shlex.join([sys.executable, *ours])}\n"


def _sbatch_word(option: str) -> str:
    """Quote an option for a line of sbatch, which reads it as a shell does, but takes backslashes in quotes as well."""
    return shlex.quote(option.replace("\\", "\\\\"))


def _allocation(cluster: ClusterSpec) -> list[str]:
    given = os.environ.get(OPTIONS_VARIABLE, "")
    try:
        more = shlex.split(given)
    except ValueError as error:
        raise InputError(f"{OPTIONS_VARIABLE} is {given!r}: {error}", rule="options as a shell reads them") from None
    if any("\n" in option for option in more):
        rule = "an option is one line of a batch script"
        raise InputError(f"{OPTIONS_VARIABLE} has an option with a line end", rule=rule)
    return [
        f"--job-name=autosync-{''.join(c if c.isalnum() or c in '-_.' else '-' for c in cluster.name)}",
        f"--nodes={len(cluster.nodes)}",
        f"--nodelist={_hosts(cluster)}",
        "--ntasks-per-node=1",
        "--exclusive",
        *_gpus(cluster, more),
        *more,
    ]


def _gpus(cluster: ClusterSpec, more: Sequence[str]) -> list[str]:
    """Return the option that asks for the GPUs of ranks: --exclusive alone shows none to steps.

    Slurm asks for as many on every node. The user's own options may say how they are to be had, or `--gres=none`.
    """
    numbers = {node.devices for node in cluster.nodes}
    is_said = any(option.startswith(("--gres", "--gpus", "-G")) for option in more)
    return [] if cluster.backend != "nccl" or len(numbers) > 1 or is_said else [f"--gres=gpu:{numbers.pop()}"]


def _hosts(cluster: ClusterSpec) -> str:
    return ",".join(node.host for node in cluster.nodes)


def _request(cluster: ClusterSpec, processes: Sequence[Process], files: Mapping[str, Path]) -> SlurmRequest:
    of_tasks = {name: os.environ[name] for name in OF_TASKS if name in os.environ}
    without = [word for name in of_tasks for word in ("-u", name)]
    srun = (*(("env", *without) if without else ()), *_SRUN)
    boot = ("--unbuffered", "--cpu-bind=none", "--mpi=none", *boot_command(python_of(cluster)))
    return SlurmRequest(
        cluster=cluster,
        has_agents=True,
        batch_script=batch_script(cluster),
        files=files,
        processes=tuple(
            replace(
                process,
                # Scripts may read them, though srun must not.
                environment={**of_tasks, **process.environment},
                reach=(*srun, f"--nodelist={process.host}", *boot),
            )
            for process in processes
        ),
    )


def _in_job(process: Process, job: str, addresses: Mapping[str, str]) -> Process:
    """Return the process as part of a job, with Slurm's address of its node."""
    place = process.reach.index("srun") + 1
    reach = (*process.reach[:place], f"--jobid={job}", *process.reach[place:])
    return replace(process, host=addresses[process.node], reach=reach)


# The allocation.


class _SlurmAllocation:
    """Nodes that this process keeps until it closes the allocation or ends."""

    def __init__(self, cluster: ClusterSpec) -> None:
        if shutil.which("salloc") is None:
            raise OperationError("salloc is not here: the slurm launcher takes Slurm's commands (package slurm-client)")
        # Nodes that were asleep may otherwise be starting when the allocation is there.
        command = ("salloc", "--no-bell", "--wait-all-nodes=1", *_allocation(cluster), "sh", "-c", _WAIT)
        self._process = AllocationProcess(command, hear=_tell_of_waiting)
        try:
            self.job = self._await_job()
        except BaseException:
            self.close()
            raise

    def _await_job(self) -> str:
        """Wait for the allocation as long as the queue takes, and return the job's id."""
        while not can_read(self._process.stdout.fileno(), 0.5):
            pass
        job = self._process.stdout.readline().decode().strip()
        if not job:
            said = " ".join(line.removeprefix("salloc: ") for line in self._process.last_words())
            raise OperationError(f"Slurm gives no allocation: {said}")
        return job

    def close(self) -> None:
        """Give the nodes back."""
        self._process.close()


def _tell_of_waiting(line: str) -> None:
    """Show the user a line of salloc if it is about waiting in the queue."""
    if "queued" in line or "Pending" in line:
        _LOG.warning("%s", line)


_ALLOCATIONS: SharedResources[_SlurmAllocation] = SharedResources()


@contextlib.contextmanager
def _held(cluster: ClusterSpec) -> Iterator[str]:
    """Yield the id of the allocation that this process is in, or else of one that it holds during the block."""
    given = os.environ.get(JOB_VARIABLE)
    if given:
        yield given
        return
    with _ALLOCATIONS.held(_hosts(cluster), lambda: _SlurmAllocation(cluster)) as allocation:
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
    """Turn the output of srun into a reason for the user; if the job has ended, that is the reason."""
    line = " ".join(said.split())
    python = process.reach[-5]
    if python in line and "No such file" in line:
        return no_python_message(python, line)
    state = _state(job)
    deadline = time.monotonic() + STATE_SECONDS
    while state == _ENDING and time.monotonic() < deadline:
        time.sleep(0.2)
        state = _state(job)
    if state in ("", "RUNNING", "CONFIGURING"):
        return line[-600:]
    down = f" ({_down(job)})" if state == _NODE_FAILED else ""
    return f"the allocation {job} has ended: {'cancelled, or out of time' if state == _ENDING else state}{down}"


def _state(job: str) -> str:
    """Return the state of a job in Slurm's words; empty if it is unknown."""
    return _facts("job", job).get("JobState", "")


def _down(job: str) -> str:
    """Say which nodes of a failed job are down. The steps tell nothing, because all of them end with the job."""
    states = {node: _facts("node", node).get("State", "") for node in _nodes_of(job)}
    names = [node for node, state in states.items() if "DOWN" in state or "NOT_RESPONDING" in state or "*" in state]
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} down" if names else "a node was lost"


def _nodes_of(job: str) -> list[str]:
    with contextlib.suppress(OperationError):
        return _query("scontrol", "show", "hostnames", _facts("job", job).get("NodeList", "")).split()
    return []


def _facts(kind: Literal["job", "node"], name: str) -> dict[str, str]:
    """Return Slurm's facts about a job or a node; none if Slurm cannot be asked."""
    try:
        return _facts_in(_query("scontrol", "--oneliner", "show", kind, name))
    except OperationError:
        return {}


def _facts_in(line: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in line.split() if "=" in word)
