"""The testbed launcher: every rank is a process in the emulated host of its node."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autosync import testbed
from autosync.errors import OperationError
from autosync.launchers import agent_launch
from autosync.launchers.agent_launch import AgentLaunch
from autosync.launchers.environment import first_node, process_of, rank_environment, script_environment, script_ranks
from autosync.launchers.local import LocalLaunch
from autosync.launchers.request import DEFAULT_PORT, Launch, LaunchRequest, Process, TrainingScript
from autosync.specs.cluster import ClusterSpec, Rank
from autosync.specs.rank_variables import THREADS_VARIABLE, rank_threads
from autosync.testbed import Testbed, live
from autosync.testbed.layout import INTERFACE, cluster_key, host_namespace
from autosync.testbed.requirements import find_folders

# Many ranks share few cores. Batch processes preempt each other less, so small messages take a third of the time.
_BATCH = ("chrt", "--batch", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class TestbedRequest(LaunchRequest):
    """A launch on the testbed of a cluster."""

    __test__ = False

    cluster: ClusterSpec


class TestbedLauncher:
    """Starts the ranks of a cluster as processes with one thread each, in the emulated hosts of its testbed."""

    __test__ = False
    control: Literal["loopback", "file", "relayed"] = "file"
    is_one_machine = True
    is_emulated = True
    way = ""
    default_python = sys.executable

    def plan(self, cluster: ClusterSpec, command: Sequence[str], logs: Path) -> TestbedRequest:
        """Plan one process for each rank, in its node's emulated host.

        WORLD_SIZE counts workers; server-only ranks come last.
        """
        environment = {
            "GLOO_SOCKET_IFNAME": INTERFACE,
            THREADS_VARIABLE: str(rank_threads()),
            # The user's working directory must not shadow installed packages.
            "PYTHONSAFEPATH": "1",
            "PYTHONUNBUFFERED": "1",
        }
        return TestbedRequest(
            cluster=cluster,
            processes=tuple(
                _process(cluster, rank, command, {**rank_environment(cluster, rank), **environment}, logs)
                for rank in cluster.ranks
            ),
        )

    def plan_script(self, cluster: ClusterSpec, script: TrainingScript, logs: Path) -> TestbedRequest:
        """Plan a user's training with the environment of `torchrun`."""
        address = self.addresses(cluster)[first_node(cluster)]
        port = DEFAULT_PORT if script.port is None else script.port
        files = {name: str(path.resolve()) for name, path in script.files.items()}
        return TestbedRequest(
            cluster=cluster,
            has_agents=True,
            processes=tuple(
                _process(
                    cluster,
                    rank,
                    command,
                    files | script_environment(cluster, rank, script, address=address, port=port, interface=INTERFACE),
                    logs,
                )
                for rank, command in script_ranks(cluster, script)
            ),
        )

    def addresses(self, cluster: ClusterSpec) -> Mapping[str, str]:
        """Return the addresses in the testbed that is up, or else in the one that would be built."""
        return {host.node: host.address for host in live.planned(cluster).hosts}

    def hold(self, cluster: ClusterSpec) -> Testbed:
        """Bring the testbed up and keep it up between launches."""
        return testbed.up(cluster)

    def start(self, request: LaunchRequest) -> Launch:
        """Bring the testbed up if needed, then start all processes. If one cannot be started, the others are ended."""
        assert isinstance(request, TestbedRequest), "a launcher starts what it planned"
        if request.has_agents:
            return _start_with_agents(request)
        launch = TestbedLaunch(testbed.up(request.cluster))
        try:
            for process in request.processes:
                launch.add(process)
        except OSError as error:
            launch.stop()
            raise OperationError(f"a rank could not be started: {error}") from error
        except BaseException:
            launch.stop()
            raise
        return launch


def _process(
    cluster: ClusterSpec, rank: Rank, command: Sequence[str], environment: Mapping[str, str], logs: Path
) -> Process:
    key = cluster_key(cluster)
    within = (*find_folders().enter(key, host_namespace(key, rank.node)), *_BATCH, *command)
    return process_of(cluster, rank, within, environment, logs)


def _start_with_agents(request: TestbedRequest) -> AgentLaunch:
    """Start with agents, and keep the testbed up until the launch is stopped."""
    bed = testbed.up(request.cluster)
    try:
        return agent_launch.start(request, then=bed.close)
    except BaseException:
        bed.close()
        raise


class TestbedLaunch(LocalLaunch):
    """Processes in a testbed's hosts; they keep the testbed up until they are stopped."""

    __test__ = False

    def __init__(self, bed: Testbed) -> None:
        super().__init__()
        self.testbed = bed

    def stop(self) -> None:
        """End the processes, and take the testbed down unless another process uses it."""
        try:
            super().stop()
        finally:
            self.testbed.close()
