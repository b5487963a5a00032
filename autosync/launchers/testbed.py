"""The testbed launcher: every rank is a process in its node's host of the emulated cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autosync import testbed
from autosync.errors import OperationError
from autosync.launchers.local import LocalLaunch
from autosync.launchers.request import LaunchRequest, Process
from autosync.specs.cluster import ClusterSpec
from autosync.testbed import Testbed
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
    control: Literal["loopback", "file"] = "file"

    def plan(self, cluster: ClusterSpec, command: Sequence[str], logs: Path) -> TestbedRequest:
        """One process a rank, in its node's host. WORLD_SIZE counts workers; ranks that only serve come after them."""
        places = find_places()
        key = cluster_key(cluster)
        return TestbedRequest(
            cluster=cluster,
            processes=tuple(
                Process(
                    rank=rank.index,
                    role=rank.role,
                    host=cluster.nodes[rank.node].host,
                    command=(*places.enter(key, host_namespace(key, rank.node)), *_BATCH, *command),
                    environment={
                        "RANK": str(rank.index),
                        "LOCAL_RANK": str(rank.local),
                        "WORLD_SIZE": str(cluster.num_workers),
                        "GLOO_SOCKET_IFNAME": INTERFACE,
                        "OMP_NUM_THREADS": "1",
                        # The user's working directory must not shadow installed packages.
                        "PYTHONSAFEPATH": "1",
                        "PYTHONUNBUFFERED": "1",
                    },
                    log=logs / f"rank-{rank.index}.log",
                )
                for rank in cluster.ranks
            ),
        )

    def hold(self, cluster: ClusterSpec) -> Testbed:
        """The testbed, which is then up between launches too."""
        return testbed.up(cluster)

    def start(self, request: LaunchRequest) -> TestbedLaunch:
        """Bring the testbed up unless it is, then start all processes; if one cannot be started, none is left."""
        assert isinstance(request, TestbedRequest), "a launcher starts what it planned"
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
