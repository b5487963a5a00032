"""Ranks that only serve: real processes, exact against stock DDP, one training after another, and each way to end."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from autosync.pictures.trace_file import read_trace
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

    @property
    def pids(self) -> list[int]:
        return [server.pid for server in self._servers]

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


@pytest.mark.slow
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


def _small(served: Served, model: Any, **options: Any) -> str:
    strategy = _on_server("small", model, "backward", **options)
    return served.bundle(f"small-{len(options)}", strategy, "small")


@pytest.mark.slow
def test_time_between_steps_is_no_failure(make_served: Callable[[ClusterSpec], Served], model: Any) -> None:
    """The server here waits 20 s for others within a step; workers 6 s, and 12 s pass."""
    served = make_served(cluster(num_servers=2))
    bundle = _small(served, model)
    served.serve([bundle, bundle])
    answers = served.ranks.run([("idles", {"bundle": bundle, "seconds": 12.0}), ("never_releases", {"bundle": bundle})])
    assert answers == [["", ""]] * 2, served.log()
    assert served.answers("s0") == [3, 3]
    # Nothing is placed there, but it is a rank of the plan.
    assert served.answers("s1") == [3, 3]


@pytest.mark.slow
def test_time_between_steps_is_no_failure_where_a_worker_has_no_share_of_the_norm(
    make_served: Callable[[ClusterSpec], Served], model: Any
) -> None:
    served = make_served(cluster(devices=(2, 1)))
    strategy = _on_server("clipped", model, "backward", local_proxy=True)
    bundle = served.bundle("clipped", strategy, "clipped")
    served.serve([bundle])
    assert served.ranks.run_one("idles", bundle=bundle, seconds=12.0, task="clipped") == [""] * 3, served.log()


def test_a_server_writes_its_timeline_as_the_others_do(
    make_served: Callable[[ClusterSpec], Served], model: Any, tmp_path: Path
) -> None:
    from autosync.cli import main

    served = make_served(cluster())
    bundle = _small(served, model)
    served.serve([bundle])
    assert served.ranks.run_one("traced", bundle=bundle, path=str(tmp_path / "made" / "t.json")) == ["", ""]
    assert served.answers() == [3], served.log()
    files = [tmp_path / "made" / f"t-rank{number}.json" for number in range(3)]
    first, _, server = [rank for file in files for rank in read_trace(file)]
    assert server.name == "rank 2 on s0"
    assert [name.replace("training", "serving") for name in first.tracks.values()] == [*server.tracks.values()]
    for kind in ("transfer", "local"):
        of_kind = [span for span in server.spans if span.kind == kind]
        assert {span.iteration for span in of_kind} == {0, 1, 2}
    # What it does there is what the others meet it in, and at the same time.
    met = {span.name for span in server.spans if span.kind == "transfer"}
    assert met == {span.name for span in first.spans if span.kind == "transfer"}
    began, ended = first.spans[0].start, first.spans[-1].end
    assert began - 1 < min(span.start for span in server.spans) < max(span.end for span in server.spans) < ended + 1
    json.loads(files[2].read_text())
    picture = tmp_path / "t.svg"
    assert main.run(["draw", "timeline", str(files[2]), str(files[0]), "--steps", "1", "-o", str(picture)]) == 0
    assert "rank 2 on s0" in picture.read_text()


def test_a_worker_that_dies_ends_the_server(make_served: Callable[[ClusterSpec], Served], model: Any) -> None:
    served = make_served(cluster())
    bundle = _small(served, model)
    served.serve([bundle])
    told, _ = served.ranks.run_one("dies", bundle=bundle)
    (answer,) = served.answers()
    assert answer.startswith("OperationError: rank 2: reduce of ")
    assert "rank 1 on n1" in answer
    assert told.startswith("OperationError: rank 0: ")


def test_workers_that_are_gone_without_a_word_end_the_server(
    make_served: Callable[[ClusterSpec], Served], model: Any
) -> None:
    served = make_served(cluster())
    bundle = _small(served, model)
    served.serve([bundle])
    # They trained right, and were gone before the session had an end.
    told = served.ranks.run_one("never_releases", bundle=bundle, exits=False)
    assert [answer.startswith("; threads left: ") for answer in told] == [True, True]
    (answer,) = served.answers()
    assert answer.startswith("OperationError: rank 2: no word from rank 0 on n0: ")


def test_a_server_goes_on_from_the_optimizers_state(make_served: Callable[[ClusterSpec], Served], model: Any) -> None:
    """Steps that were made before servers were there; checkpoints are tested where all ways to train are."""
    served = make_served(cluster())
    bundle = _small(served, model)
    served.serve([bundle])
    assert served.ranks.run_one("resumes", bundle=bundle) == ["", ""], served.log()


def test_workers_hear_of_a_server_that_dies(make_served: Callable[[ClusterSpec], Served], model: Any) -> None:
    served = make_served(cluster())
    bundle = _small(served, model)
    served.serve([bundle])
    answers = served.ranks.run_one("server_dies", bundle=bundle, server=served.pids[0])
    for rank, told in enumerate(answers):
        assert told.startswith(("OperationError: rank", "OperationError: no word reaches rank 2 on s0")), rank
        assert "rank 2 on s0" in told


def test_another_bundle_is_refused_on_all_ranks(make_served: Callable[[ClusterSpec], Served], model: Any) -> None:
    served = make_served(cluster())
    theirs, ours = _small(served, model), _small(served, model, update="worker")
    served.serve([ours])
    answers = served.ranks.run_one("different_bundles", bundles=[theirs, theirs])
    for told in (*answers, *served.answers()):
        assert told.startswith("OperationError: the server on s0 has strategy ")
        assert told.endswith("(all ranks must have the same)")


def test_without_a_server_workers_say_how_to_start_one(
    make_served: Callable[[ClusterSpec], Served], model: Any
) -> None:
    served = make_served(cluster())
    bundle = _small(served, model)
    answers = served.ranks.run_one("idles", bundle=bundle, seconds=2.0)
    for told in answers:
        assert told == (
            "OperationError: no server is there for node s0 after 1 s "
            "(the strategy needs one: autosync serve BUNDLE --node s0)"
        )


COMMAND = ("-c", "from autosync.cli.main import main; main()", "serve")


def test_the_command_serves_one_training_after_another(
    make_served: Callable[[ClusterSpec], Served], model: Any
) -> None:
    served = make_served(cluster())
    bundle = _small(served, model)
    place = f"file://{served.folder / 'rendezvous'}"
    # One that is gone before anybody needs it: what it left in the store misleads nobody.
    gone = served.start((*COMMAND, bundle, "--node", "s0", "--rendezvous", place), "s0")
    _await_line(served, "waiting for workers")
    _await_key(served)
    gone.kill()
    process = served.start((*COMMAND, bundle, "--node", "s0", "--rendezvous", place), "s0")
    # The newest one is invited: while only the other's word is there, that would be the one who is gone.
    _await_key(served, 2)
    answers = served.ranks.run([("exact", {"task": "small", "bundle": bundle})] * 2)
    assert answers == [["", ""]] * 2, served.log()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert served.log().splitlines()[1:] == [
        *["training has begun", "training has ended after 3 steps"] * 2,
        "interrupted",
    ]


def _await_line(served: Served, text: str) -> None:
    deadline = time.monotonic() + 60
    while text not in served.log():
        assert time.monotonic() < deadline, served.log()
        time.sleep(0.05)


def _await_key(served: Served, number: int = 1) -> None:
    deadline, place = time.monotonic() + 60, served.folder / "rendezvous"
    while not place.exists() or f"autosync/servers/s0/{number}/here".encode() not in place.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.05)


STORE = """
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
store.wait(["autosync/servers/s0/1/here"])
print("here", flush=True)
"""


def test_the_command_ends_with_the_workers_store(make_served: Callable[[ClusterSpec], Served], model: Any) -> None:
    served = make_served(cluster())
    bundle = _small(served, model)
    with subprocess.Popen((sys.executable, "-c", STORE), stdout=subprocess.PIPE, text=True) as store:
        assert store.stdout is not None
        place = f"tcp://127.0.0.1:{store.stdout.readline().strip()}"
        process = served.start((*COMMAND, bundle, "--node", "s0", "--rendezvous", place), "s0")
        assert store.stdout.readline() == "here\n"
    assert process.wait(30) == 0
    assert "the workers' store is gone" in served.log()


@pytest.fixture
def small_bundle(make_served: Callable[[ClusterSpec], Served], model: Any) -> str:
    return _small(make_served(cluster()), model)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ("--node", "n0"),
            "no node that only serves is named n0 (the nodes that only serve in the bundle's cluster: s0)",
        ),
        (("--node", "s0"), "MASTER_ADDR and MASTER_PORT not set in the environment"),
        (("--node", "s0", "--rendezvous", "tcp://here"), "'tcp://here' is no rendezvous (env://, tcp://HOST:PORT"),
        (("--node", "s0", "--timeout", "0"), "0.0 is not in the range"),
    ],
)
def test_the_command_refuses(
    options: tuple[str, ...],
    told: str,
    small_bundle: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from autosync.cli import main

    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    assert main.run(["serve", small_bundle, *options]) == 2
    assert told in capsys.readouterr().err


def test_a_strategy_without_work_for_servers_needs_none(
    make_served: Callable[[ClusterSpec], Served], model: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from autosync.cli import main

    served = make_served(cluster())
    strategy = Strategy(messages=(Message(parts=tuple(v.name for v in model("small").variables)),))
    bundle = served.bundle("alone", strategy, "small")
    assert served.ranks.run_one("exact", task="small", bundle=bundle) == ["", ""]
    assert main.run(["serve", bundle, "--node", "s0", "--rendezvous", "tcp://127.0.0.1:1"]) == 2
    assert "no work for a server" in capsys.readouterr().err
