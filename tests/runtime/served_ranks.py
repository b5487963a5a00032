"""Workers and the servers that train with them: real processes of one cluster."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autosync.specs.cluster import ClusterSpec, Node
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from tests.helpers.forks import Forked

HERE = Path(__file__).parent


def cluster(num_servers: int = 1, devices: Sequence[int] = (1, 1)) -> ClusterSpec:
    workers = [
        Node(name=f"n{i}", host="localhost", devices=count, bandwidth_out=1e8, bandwidth_in=1e8)
        for i, count in enumerate(devices)
    ]
    servers = [
        Node(name=f"s{i}", host="localhost", role="server", devices=0, bandwidth_out=1e8, bandwidth_in=1e8)
        for i in range(num_servers)
    ]
    return ClusterSpec(name="served", nodes=(*workers, *servers))


class Served:
    """Workers and servers of one cluster."""

    def __init__(self, ranks: Any) -> None:
        self.ranks = ranks
        self.folder: Path = ranks.folder
        self._servers: list[subprocess.Popen[bytes] | Forked] = []

    def bundle(self, name: str, strategy: Strategy, task: str) -> str:
        conftest = sys.modules[type(self.ranks).__module__]
        path: str = conftest.write_bundle(self.folder / f"{name}.yaml", strategy, task, self.ranks.cluster)
        return path

    def start(
        self, command: Sequence[str], node: str, way: type[subprocess.Popen[bytes] | Forked] = subprocess.Popen
    ) -> subprocess.Popen[bytes] | Forked:
        with (self.folder / f"server-{node}.log").open("wb") as log:
            self._servers.append(
                way(
                    (sys.executable, *command),
                    env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )
        return self._servers[-1]

    def serve(self, bundles: Sequence[str]) -> None:
        """Start a process a server node that serves these bundles in turn."""
        (self.folder / "served.json").write_text(json.dumps(bundles))
        for node in self.ranks.cluster.nodes:
            if node.role == "server":
                self.start((str(HERE / "server_main.py"), str(self.folder), node.name), node.name, Forked)

    def answers(self, node: str = "s0") -> list[Any]:
        """What came of each training, once the server has ended."""
        for server in self._servers:
            server.wait(30)
        found: list[Any] = json.loads((self.folder / f"served-{node}.json").read_text())
        return found

    def log(self, node: str = "s0") -> str:
        return (self.folder / f"server-{node}.log").read_text()

    @property
    def pids(self) -> list[int]:
        return [server.pid for server in self._servers]

    def stop(self) -> None:
        for server in self._servers:
            with contextlib.suppress(ProcessLookupError):
                server.send_signal(signal.SIGKILL)
            server.wait()


def on_server(task: str, model: Any, overlap: Any, **options: Any) -> Strategy:
    """Every variable at the first server, weights and biases in messages of their own."""
    names = [variable.name for variable in model(task).variables]
    halves = [tuple(names[: len(names) // 2]), tuple(names[len(names) // 2 :])]
    messages = tuple(Message(parts=half, synchroniser=ParameterServer(server="s0", **options)) for half in halves)
    return Strategy(messages=messages, overlap=overlap)


def bundle_of_small(served: Served, model: Any, **options: Any) -> str:
    strategy = on_server("small", model, "backward", **options)
    return served.bundle(f"small-{len(options)}", strategy, "small")
