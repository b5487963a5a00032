"""A real Ray cluster whose nodes are hosts of a testbed. It is used from its host `head`, with Ray's own services."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from autosync.errors import OperationError
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.launch_options import RayOptions
from autosync.testbed import Testbed, live, up
from autosync.testbed.requirements import find_folders

HEAD = "head"
PORT = 6399
_RAY = "from ray.scripts.scripts import main; main()"
_SERVICES = ("/ray/", "ray::", "raylet", "gcs_server", "ray.scripts")


def missing() -> str:
    """Why there can be no Ray cluster here; empty where there can."""
    if importlib.util.find_spec("ray") is None:
        return "ray is not installed (pip install 'autosync-torch[ray]'): make test-launchers installs it"
    if os.geteuid():
        return "a raylet in a host of the testbed takes root"
    try:
        find_folders()
    except OperationError as error:
        return str(error)
    return ""


class RayHosts:
    """A testbed's hosts as nodes of a Ray cluster."""

    def __init__(self, bed: Testbed, folder: Path, cluster: ClusterSpec) -> None:
        self.bed = bed
        self.folder = folder
        self.cluster = cluster
        self.address = f"{bed.address(HEAD)}:{PORT}"
        self.environment = {"RAY_ADDRESS": self.address, "RAY_USAGE_STATS_ENABLED": "0"}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def through(self) -> tuple[str, ...]:
        """The words before a command that make it run where Ray is used from."""
        return self.bed.enter(HEAD)

    def start(self) -> None:
        self.start_node(HEAD, "--head", f"--port={PORT}", "--num-cpus=0", "--include-dashboard=false")
        self.await_nodes(1)
        for node in self.cluster.nodes:
            self.start_node(node.name, f"--address={self.address}", "--num-cpus=2")
        self.await_nodes(1 + len(self.cluster.nodes))

    def start_node(self, node: str, *options: str, **environment: str) -> None:
        """A raylet in a node's host, with a folder of its own as a machine would have."""
        common = (f"--node-ip-address={self.bed.address(node)}", "--object-store-memory=80000000", "--block")
        temporary = (f"--temp-dir={self.folder / node}",)
        with (self.folder / f"{node}.log").open("ab") as log:
            self._daemons[node] = subprocess.Popen(
                (*self.bed.enter(node), sys.executable, "-P", "-c", _RAY, "start", *options, *common, *temporary),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **self.environment, "RAY_raylet_start_wait_time_s": "60", **environment},
            )

    def await_nodes(self, number: int) -> None:
        """Wait until so many nodes are there."""
        program = (
            f"import ray; ray.init({self.address!r}, logging_level=40); print(sum(n['Alive'] for n in ray.nodes()))"
        )
        deadline = time.monotonic() + 90
        said = ""
        while said.split()[-1:] != [str(number)]:
            assert time.monotonic() < deadline, said + self.told()
            done = subprocess.run(
                (*self.through, sys.executable, "-P", "-c", program),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=60,
                env={**os.environ, **self.environment},
            )
            said = done.stdout

    def rejoin(self, node: str) -> None:
        """Puts a node back on the network, with another raylet: Ray gives up on one that was away."""
        self.bed.set_link(node, up=True)
        self.restart(node)

    def keep_temporary(self, node: str, folder: Path | None) -> None:
        """A node's temporary files lie in a folder; None: where they always lay."""
        self.restart(node, **({} if folder is None else {"TMPDIR": str(folder)}))

    def restart(self, node: str, **environment: str) -> None:
        """Another raylet, whose actors have other variables."""
        daemon = self._daemons.pop(node)
        daemon.kill()
        daemon.wait()
        self.await_nodes(len(self.cluster.nodes))
        self.start_node(node, f"--address={self.address}", "--num-cpus=2", **environment)
        self.await_nodes(1 + len(self.cluster.nodes))

    def told(self) -> str:
        """The last of what each daemon has said."""
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in sorted(self.folder.glob("*.log")))

    def left(self, *nodes: str) -> list[str]:
        """What runs in some hosts, or in any, but for Ray itself."""
        processes = self.bed.processes()
        found = [f"{node}: {one}" for node in nodes or processes for one in processes[node]]
        return [one for one in found if not any(word in one for word in _SERVICES)]

    def end(self) -> None:
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()


@contextmanager
def ray_hosts(nodes: Sequence[Node]) -> Iterator[RayHosts]:
    """A Ray cluster of some nodes, and their cluster under the ray launcher. Everything is gone afterwards."""
    head = Node(name=HEAD, host=HEAD, bandwidth_out=1e8, bandwidth_in=1e8)
    bed_cluster = ClusterSpec(name=f"test-{secrets.token_hex(4)}", nodes=(*nodes, head), launcher="testbed")
    with ExitStack() as stack:
        # Names of Unix sockets are short, and Ray's own folders are deep.
        folder = Path(tempfile.mkdtemp(prefix="ray-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(live.down, bed_cluster, force=True)
        bed = stack.enter_context(up(bed_cluster))
        addressed = tuple(replace(node, host=bed.address(node.name)) for node in nodes)
        options = RayOptions(address=f"{bed.address(HEAD)}:{PORT}")
        hosts = RayHosts(bed, folder, ClusterSpec(name="ray-hosts", nodes=addressed, launcher="ray", ray=options))
        stack.callback(hosts.end)
        hosts.start()
        yield hosts
