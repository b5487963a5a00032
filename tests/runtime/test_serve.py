"""Ranks that only serve: real processes, exact against stock DDP, one training after another, and each way to end."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from autosync.plan.lowering import lower
from autosync.runtime.invitations import servers_of
from autosync.runtime.support import unsupported
from autosync.specs.cluster import ClusterSpec, Node
from autosync.strategy.canonical import strategy_id
from autosync.strategy.representation import Message, ParameterServer, Strategy
from autosync.strategy.space import Limits, Space

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
        self._servers: list[subprocess.Popen[bytes]] = []

    def bundle(self, name: str, strategy: Strategy, task: str) -> str:
        conftest = sys.modules[type(self.ranks).__module__]
        path: str = conftest.write_bundle(self.folder / f"{name}.yaml", strategy, task, self.ranks.cluster)
        return path

    def start(self, command: Sequence[str], node: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"server-{node}.log").open("wb") as log:
            self._servers.append(
                subprocess.Popen(
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
                self.start((str(HERE / "server_main.py"), str(self.folder), node.name), node.name)

    def answers(self, node: str = "s0") -> list[Any]:
        """What came of each training, once the server has ended."""
        for server in self._servers:
            server.wait(30)
        found: list[Any] = json.loads((self.folder / f"served-{node}.json").read_text())
        return found

    def log(self, node: str = "s0") -> str:
        return (self.folder / f"server-{node}.log").read_text()

    def stop(self) -> None:
        for server in self._servers:
            with contextlib.suppress(ProcessLookupError):
                server.send_signal(signal.SIGKILL)
            server.wait()


@pytest.fixture
def make_served(make_ranks: Callable[[str], Any]) -> Iterator[Callable[[ClusterSpec], Served]]:
    made: list[Served] = []

    def make(spec: ClusterSpec) -> Served:
        ranks = make_ranks("one node")
        ranks.cluster = spec
        made.append(Served(ranks))
        return made[-1]

    yield make
    for served in made:
        served.stop()


def _on_server(task: str, model: Any, overlap: Any, **options: Any) -> Strategy:
    """Every variable at the first server, weights and biases in messages of their own."""
    names = [variable.name for variable in model(task).variables]
    halves = [tuple(names[: len(names) // 2]), tuple(names[len(names) // 2 :])]
    messages = tuple(Message(parts=half, synchroniser=ParameterServer(server="s0", **options)) for half in halves)
    return Strategy(messages=messages, overlap=overlap)


def _uses_servers(strategy: Strategy, task: str, served: Served, model: Any) -> bool:
    plan = lower(strategy, model(task), served.ranks.cluster)
    return strategy.is_exact and bool(servers_of(plan)) and not unsupported(plan)


def _samples(task: str, served: Served, model: Any, count: int, overlap: Any) -> Iterator[Strategy]:
    space = Space(model=model(task), cluster=served.ranks.cluster, limits=Limits(overlaps=(overlap,)))
    rng, seen = random.Random(0), set()
    for _ in range(60 * count):
        strategy = space.sample(rng)
        identity = strategy_id(strategy, model(task), served.ranks.cluster)
        if identity not in seen and _uses_servers(strategy, task, served, model):
            seen.add(identity)
            yield strategy
        if len(seen) == count:
            return


@pytest.fixture
def model() -> Any:
    import importlib

    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(HERE / "conftest.py"):
            return module.model
    return importlib.import_module("conftest").model


@pytest.mark.parametrize("overlap", ["backward", "forward"])
def test_training_with_a_server_is_that_of_stock_ddp(
    overlap: str, make_served: Callable[[ClusterSpec], Served], model: Any
) -> None:
    served = make_served(cluster(devices=(2, 1)))
    named: dict[tuple[str, str], Strategy] = {}
    for task, count in {"convnet": 2, "odd": 2, "transformer": 8, "clipped": 2}.items():
        for update in ("server", "worker"):
            for proxy in (False, True):
                strategy = _on_server(task, model, overlap, update=update, local_proxy=proxy)
                if _uses_servers(strategy, task, served, model):
                    named[task, f"{update} {proxy}"] = strategy
        for index, strategy in enumerate(_samples(task, served, model, count, overlap)):
            named[task, f"sample {index}"] = strategy
    assert len(named) > 20
    bundles = {
        (task, name): served.bundle(f"{task}-{number}", strategy, task)
        for number, ((task, name), strategy) in enumerate(named.items())
    }
    served.serve(list(bundles.values()))
    answers = served.ranks.run([("exact", {"task": task, "bundle": path}) for (task, _), path in bundles.items()])
    for rank, given in enumerate(answers):
        found = {key: answer for key, answer in zip(bundles, given, strict=False) if answer}
        assert found == {}, f"rank {rank}: {served.log()}"
        assert len(given) == len(bundles), f"rank {rank}:\n{(served.folder / 'log').read_text()}\n{served.log()}"
    assert served.answers() == [3] * len(bundles)
