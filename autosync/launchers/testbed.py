"""The testbed launcher: every rank is a process in its node's host of the emulated cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autosync import testbed
from autosync.errors import OperationError
from autosync.launchers import minded
from autosync.launchers.environment import process_of, rank_environment, script_environment, script_ranks
from autosync.launchers.local import LocalLaunch
from autosync.launchers.minded import MindedProcesses
from autosync.launchers.request import DEFAULT_PORT, Launch, LaunchRequest, Process, Script
from autosync.specs.cluster import ClusterSpec, Rank
from autosync.testbed import Testbed, live
from autosync.testbed.layout import INTERFACE, cluster_key, host_namespace
from autosync.testbed.support import find_places

# Many ranks share a few cores. As batch processes they pre-empt each other less, and small messages cost a third.
_BATCH = ("chrt", "--batch", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class TestbedRequest(LaunchRequest):
    """A launch on the testbed of a cluster."""

    __test__ = False

    cluster: ClusterSpec


class TestbedLauncher:
    """Starts the ranks of a cluster in the hosts of its testbed, one thread each."""

    __test__ = False
    control: Literal["loopback", "file", "relayed"] = "file"

    def plan(self, cluster: ClusterSpec, command: Sequence[str], logs: Path) -> TestbedRequest:
        """One process a rank, in its node's host. WORLD_SIZE counts workers; ranks that only serve come after them."""
        environment = {
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "OMP_NUM_THREADS": "1",
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

    def plan_script(self, cluster: ClusterSpec, script: Script, logs: Path) -> TestbedRequest:
        """The same with what `torchrun` gives its ranks."""
        address = self.addresses(cluster)[cluster.nodes[cluster.ranks[0].node].name]
        port = DEFAULT_PORT if script.port is None else script.port
        files = {name: str(path.resolve()) for name, path in script.files.items()}
        return TestbedRequest(
            cluster=cluster,
            minded=True,
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
        """Those of the testbed that is up, or of the one that would be built."""
        return {host.node: host.address for host in live.planned(cluster).hosts}

    def hold(self, cluster: ClusterSpec) -> Testbed:
        """The testbed, which is then up between launches too."""
        return testbed.up(cluster)

    def start(self, request: LaunchRequest) -> Launch:
        """Bring the testbed up unless it is, then start all processes; if one cannot be started, none is left."""
        assert isinstance(request, TestbedRequest), "a launcher starts what it planned"
        if request.minded:
            return _start_minded(request)
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
    within = (*find_places().enter(key, host_namespace(key, rank.node)), *_BATCH, *command)
    return process_of(cluster, rank, within, environment, logs)


def _start_minded(request: TestbedRequest) -> MindedProcesses:
    """With the testbed up for as long as they run."""
    bed = testbed.up(request.cluster)
    try:
        return minded.start(request, then=bed.close)
    except BaseException:
        bed.close()
        raise


class TestbedLaunch(LocalLaunch):
    """Processes in a testbed's hosts, with a lease on it until they are stopped."""

    __test__ = False

    def __init__(self, bed: Testbed) -> None:
        super().__init__()
        self.testbed = bed

    def stop(self) -> None:
        """End the processes; the testbed goes too unless somebody else has it."""
        try:
            super().stop()
        finally:
            self.testbed.close()
