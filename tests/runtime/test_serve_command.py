"""`autosync serve`: one training after another, junk in the store, bad input, and whom it serves."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from autosync.signatures import SECRET_VARIABLE
from autosync.specs.cluster import ClusterSpec
from tests.runtime.served_ranks import HERE, Served, bundle_of_small, cluster


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers and servers have it, as under `autosync launch`."""
    monkeypatch.setenv(SECRET_VARIABLE, "of workers and servers")


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


@pytest.fixture
def model() -> Any:
    import importlib

    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(HERE / "conftest.py"):
            return module.model
    return importlib.import_module("conftest").model


COMMAND = ("-c", "from autosync.cli.main import main; main()", "serve")

INTERRUPTED = """
import builtins, datetime, os, signal, sys, time
import torch.distributed as dist
from autosync.cli.serve import interruptible

class Last:
    def __del__(self, sleep=time.sleep):
        sleep(8)

# What is here ends last.
builtins.last = Last()
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=datetime.timedelta(seconds=5))
try:
    interruptible(lambda: (os.kill(os.getpid(), signal.SIGINT), store.get("absent")))
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_the_command_serves_one_training_after_another(
    make_served: Callable[[ClusterSpec], Served], model: Any
) -> None:
    served = make_served(cluster())
    bundle = bundle_of_small(served, model)
    place = f"file://{served.folder / 'rendezvous'}"
    # One that is gone before anybody needs it: what it left in the store misleads nobody.
    gone = served.start((*COMMAND, bundle, "--node", "s0", "--rendezvous", place), "s0")
    _await_line(served, "waiting for workers")
    _await_key(served)
    gone.kill()
    process = served.start((*COMMAND, bundle, "--node", "s0", "--rendezvous", place), "s0")
    answers = served.ranks.run([("exact", {"task": "small", "bundle": bundle})] * 2)
    assert answers == [["", ""]] * 2, served.log()
    # Workers go on before the server has heard that training has ended.
    _await_line(served, "training has ended after 3 steps\ntraining has begun\ntraining has ended after 3 steps")
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert served.log().splitlines()[1:] == [
        *["training has begun", "training has ended after 3 steps"] * 2,
        "interrupted",
    ]


def test_an_interrupted_command_is_not_aborted_by_a_thread_that_waits_in_torch() -> None:
    """The thread's wait is over while Python ends, which takes longer here."""
    ended = subprocess.run((sys.executable, "-c", INTERRUPTED), capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (130, "")


def test_with_once_the_command_ends_after_one_training(
    make_served: Callable[[ClusterSpec], Served], model: Any
) -> None:
    served = make_served(cluster())
    bundle = bundle_of_small(served, model)
    place = f"file://{served.folder / 'rendezvous'}"
    process = served.start((*COMMAND, bundle, "--node", "s0", "--rendezvous", place, "--once"), "s0")
    assert served.ranks.run_one("exact", task="small", bundle=bundle) == ["", ""], served.log()
    assert process.wait(30) == 0
    assert served.log().splitlines()[1:] == ["training has begun", "training has ended after 3 steps"]


@pytest.mark.slow
def test_the_command_ends_if_a_worker_hangs_in_a_step(make_served: Callable[[ClusterSpec], Served], model: Any) -> None:
    served = make_served(cluster())
    bundle = bundle_of_small(served, model)
    place = f"file://{served.folder / 'rendezvous'}"
    process = served.start((*COMMAND, bundle, "--node", "s0", "--rendezvous", place, "--timeout", "5"), "s0")
    answers = served.ranks.run_one("hangs", bundle=bundle)
    assert "rank 2 on s0" in answers[0], (answers, served.log())
    assert process.wait(30) == 1, served.log()
    assert "training has begun" in served.log()
    assert "error: rank 2" in served.log()


def _await_line(served: Served, text: str) -> None:
    deadline = time.monotonic() + 60
    while text not in served.log():
        assert time.monotonic() < deadline, served.log()
        time.sleep(0.05)


def _await_key(served: Served) -> None:
    deadline, place = time.monotonic() + 60, served.folder / "rendezvous"
    while not place.exists() or b"/free" not in place.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.05)


STORE = """
import sys, time, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
while not (keys := [key for key in store.list_keys() if key.startswith("autosync/servers/")]):
    time.sleep(0.05)
print("here", flush=True)
junk = ["not json", '{"session": "x", "rank": 2, "checks": true, "trace": "/tmp/x", "extra": 1}', "", "[" * 9999]
for number in range(200 if sys.argv[1:] else 0):
    for key in [*store.list_keys(), *(f"autosync/servers/s0/{n}/{what}" for n in range(3) for what in sys.argv[1:])]:
        store.set(key, junk[number % len(junk)])
        if number % 7 == 0:
            store.delete_key(key)
    time.sleep(0.01)
print("done", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_open", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_junk_in_the_store_ends_no_server(
    make_served: Callable[[ClusterSpec], Served],
    model: Any,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_open: bool,
) -> None:
    """An outsider that lists, damages and deletes all that lies in the store."""
    if is_open:
        monkeypatch.delenv(SECRET_VARIABLE)
    served = make_served(cluster())
    bundle = bundle_of_small(served, model)
    command = (sys.executable, "-c", STORE, "invitation", "here", "call")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as store:
        assert store.stdout is not None
        place = f"tcp://127.0.0.1:{store.stdout.readline().strip()}"
        options = ("--node", "s0", "--rendezvous", place, *(("--open",) if is_open else ()))
        process = served.start((*COMMAND, bundle, *options), "s0")
        assert [store.stdout.readline(), store.stdout.readline()] == ["here\n", "done\n"]
    # It ends when the store does, and with the words that it has for that.
    assert process.wait(30) == 0, served.log()
    # Torch has words of its own in between.
    assert served.log().splitlines()[-1] == "the workers' store is gone: nothing more to serve"
    assert "training" not in served.log()


def test_the_command_ends_with_the_workers_store(make_served: Callable[[ClusterSpec], Served], model: Any) -> None:
    served = make_served(cluster())
    bundle = bundle_of_small(served, model)
    with subprocess.Popen((sys.executable, "-c", STORE), stdout=subprocess.PIPE, text=True) as store:
        assert store.stdout is not None
        place = f"tcp://127.0.0.1:{store.stdout.readline().strip()}"
        process = served.start((*COMMAND, bundle, "--node", "s0", "--rendezvous", place), "s0")
        assert store.stdout.readline() == "here\n"
    assert process.wait(30) == 0
    assert "the workers' store is gone" in served.log()


@pytest.fixture
def small_bundle(make_served: Callable[[ClusterSpec], Served], model: Any) -> str:
    return bundle_of_small(make_served(cluster()), model)


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
        (("--node", "s0", "--open"), "--open is given, and AUTOSYNC_SECRET is set"),
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


def test_without_a_secret_the_command_asks_whom_to_serve(
    small_bundle: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from autosync.cli import main

    monkeypatch.delenv(SECRET_VARIABLE)
    assert main.run(["serve", small_bundle, "--node", "s0"]) == 2
    told = capsys.readouterr().err
    assert "AUTOSYNC_SECRET is not set (a server joins the training of workers that know its secret)" in told
    assert "--open" in told
