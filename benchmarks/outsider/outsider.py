"""An outsider on the same machine: `python benchmarks/outsider/outsider.py --minutes 10 > outsider.json` (as root).

A process of another user constantly tries to disturb trials and servers (`attack.py` tells how). Meanwhile a trial
service repeatedly starts ranks and trains a stock contestant and one with a server. Two `autosync serve` wait at a
torch store that the outsider reaches: one with a secret, and one that serves any process (`--open`). When the time is
over the outsider ends, and two workers train with the server that has the secret.

No trial may fail, no server may end, and the last training must succeed; otherwise it ends with 1. The outsider does
not try what no program on top of gloo and torch's store can prevent: disturbing gloo while it connects, and new clients
of the store (docs/serving.md).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from autosync import Task, parallelize
from autosync.plan.bundling import bundled
from autosync.runtime.parallelize import release
from autosync.signatures import SECRET_VARIABLE, draw_secret
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model_file import model_of
from autosync.strategy.bundle import save_bundle
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.trials.contestant import Contestant
from autosync.trials.service import TrialFailed, TrialService

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.shared import parser_of, report, run

HERE = Path(__file__).resolve()
RATE = 1e9
ENVIRONMENT = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
ENVIRONMENT.pop(SECRET_VARIABLE, None)
NUM_STEPS = 4
SERVER_TIMEOUT_SECONDS = 5.0
TRIAL_TIMEOUT_SECONDS = 120.0
LAST_SECONDS = 300.0
"""How long the training at the end may take."""


def task() -> Task:
    """Return the task to train."""
    return Task(
        name="outsider",
        model=lambda: nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)),
        batch=lambda generator: torch.randn(4, 64, generator=generator),
        loss=lambda model, x: model(x).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-2),
    )


def cluster() -> ClusterSpec:
    """Return a cluster of two workers and a server on this machine."""

    def node(name: str, **fields: Any) -> Node:
        return Node(name=name, host="localhost", bandwidth_out=RATE, bandwidth_in=RATE, **fields)

    return ClusterSpec(name="outsider", nodes=(node("n0"), node("n1"), node("s0", role="server", devices=0)))


# The ports of our own processes: the outsider must not disturb others.


def descendants(pid: int) -> set[int]:
    """Return a process and all its descendants."""
    found, new = {pid}, [pid]
    while new:
        with contextlib.suppress(OSError):
            one = new.pop()
            for task_folder in Path(f"/proc/{one}/task").iterdir():
                children = {int(word) for word in (task_folder / "children").read_text().split()} - found
                found |= children
                new += children
    return found


def ports_of(pids: set[int]) -> list[int]:
    """Return the ports on which these processes listen."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
    ports = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and words[9] in inodes:
                    ports.add(int(words[1].rpartition(":")[2], 16))
    return sorted(ports)


@contextlib.contextmanager
def told(path: Path, folder: Path, store: int) -> Iterator[None]:
    """Keep the file of targets up to date."""
    is_over = threading.Event()

    def tell() -> None:
        while not is_over.wait(0.1):
            new = path.with_suffix(".new")
            new.write_text(
                json.dumps({"ports": ports_of(descendants(os.getpid())), "store": store, "folder": str(folder)})
            )
            new.replace(path)

    thread = threading.Thread(target=tell)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


# The trials and servers that are disturbed.


def served(name: str, model: Any, spec: ClusterSpec) -> Contestant:
    """Return a contestant with all variables at the server."""
    parts = tuple(variable.name for variable in model.variables)
    strategy = Strategy(messages=(Message(parts=parts, synchroniser=ParameterServer(server="s0")),))
    return Contestant(name=name, bundle=bundled(strategy, model, spec))


def one_round(folder: Path, model: Any, spec: ClusterSpec) -> list[dict[str, Any]]:
    """Start ranks and run two trials; return how each ended."""
    outcomes = []
    service = TrialService(
        target=f"{HERE}:task", model=model, cluster=spec, folder=folder, timeout_seconds=TRIAL_TIMEOUT_SECONDS
    )
    with service:
        for contestant in (Contestant(name="stock"), served("served", model, spec)):
            try:
                service.prepare(contestant)
                service.run(contestant.name, NUM_STEPS)
                service.release(contestant.name)
                outcomes.append({"contestant": contestant.name, "failure": None})
            except TrialFailed as error:
                outcomes.append({"contestant": contestant.name, "failure": f"{error.kind}: {error.message}"})
    return outcomes


class Servers:
    """Two servers at a store: one with a secret, and one that is open."""

    def __init__(self, folder: Path, bundle: Path, port: int, secret: str) -> None:
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("secret", "open"):
            environment = ENVIRONMENT | ({SECRET_VARIABLE: secret} if name == "secret" else {})
            command = [sys.executable, "-m", "autosync.cli", "serve", str(bundle), "--node", "s0"]
            command += ["--rendezvous", f"tcp://127.0.0.1:{port}", "--timeout", str(SERVER_TIMEOUT_SECONDS)]
            with (folder / f"server-{name}.log").open("wb") as log:
                self._processes[name] = subprocess.Popen(
                    [*command, *(["--open"] if name == "open" else [])],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )

    def await_there(self) -> None:
        """Wait until both are connected to the store, because later clients wait behind the outsider's connections."""
        time.sleep(1.0)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and any(
            "waiting for workers" not in self.log(name) for name in self._processes
        ):
            time.sleep(0.1)
        time.sleep(1.0)

    def log(self, name: str) -> str:
        return (self._folder / f"server-{name}.log").read_text("utf-8", "replace")

    def report(self) -> dict[str, Any]:
        """Return which servers still run, and the last lines of the others."""
        found: dict[str, Any] = {}
        for name, process in self._processes.items():
            code = process.poll()
            found[name] = {"runs": code is None}
            if code is not None:
                found[name] |= {"code": code, "said": self.log(name).splitlines()[-5:]}
        return found

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


def train_with(store: int, bundle: Path, secret: str, folder: Path) -> dict[str, Any]:
    """Train with two workers and the running server."""
    environment = ENVIRONMENT | {SECRET_VARIABLE: secret}
    workers = []
    for rank in range(2):
        with (folder / f"worker-{rank}.log").open("wb") as log:
            command = [sys.executable, str(HERE), "--worker", str(rank), str(store), str(bundle)]
            workers.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    deadline = time.monotonic() + LAST_SECONDS
    codes: list[int | None] = []
    for worker in workers:
        try:
            codes.append(worker.wait(max(0.1, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
            codes.append(None)
    said = [(folder / f"worker-{rank}.log").read_text("utf-8", "replace").splitlines()[-3:] for rank in range(2)]
    return {"done": codes == [0, 0], **({} if codes == [0, 0] else {"codes": codes, "said": said})}


def worker(rank: int, port: int, bundle: str) -> None:
    """Run one worker of the training at the end."""
    torch.set_num_threads(1)
    patience = dt.timedelta(seconds=LAST_SECONDS)
    base: Any = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=patience, wait_for_workers=False)  # type: ignore[attr-defined]
    # A prefix, so that values that the outsider has left in the store do not count for this group.
    dist.init_process_group("gloo", store=dist.PrefixStore("last", base), rank=rank, world_size=2, timeout=patience)  # type: ignore[attr-defined]
    made = task()
    torch.manual_seed(0)
    model = made.model()
    optimizer = made.optimizer(model.parameters())
    parallelize(model, optimizer, bundle, timeout_seconds=120.0)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        made.loss(model, made.batch(generator)).backward()
        optimizer.step()
    release(model)
    dist.destroy_process_group()


def main() -> int:
    """Run everything, and print one JSON document."""
    parser = parser_of(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--uid", type=int, default=1001, help="the outsider's user")
    parser.add_argument("--worker", nargs=3, metavar=("RANK", "PORT", "BUNDLE"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        worker(int(chosen.worker[0]), int(chosen.worker[1]), chosen.worker[2])
        return 0
    if os.geteuid():
        sys.stderr.write("only root can start a process of another user's\n")
        return 2
    with tempfile.TemporaryDirectory(prefix="autosync-outsider-") as name:
        # Like folders of studies: all users may read, none may write.
        folder = Path(name)
        folder.chmod(0o755)
        found = besieged(folder, 60.0 * chosen.minutes, chosen.uid)
    return report(found, holds=found["holds"])


def besieged(folder: Path, seconds: float, uid: int) -> dict[str, Any]:
    """Run trials and servers during the attack, and the training after it."""
    spec, model, secret = cluster(), model_of(f"{HERE}:task"), draw_secret()
    bundle = folder / "bundle.yaml"
    wanted = served("served", model, spec).bundle
    assert wanted is not None, "a served contestant has a bundle"
    save_bundle(bundle, wanted)
    store: Any = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    servers = Servers(folder, bundle, store.port, secret)
    outcomes: list[dict[str, Any]] = []
    try:
        servers.await_there()
        targets = folder / "targets.json"
        with told(targets, folder, store.port):
            attack = [sys.executable, str(HERE.with_name("attack.py")), str(targets), str(seconds), str(uid)]
            with subprocess.Popen(attack, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as outsider:
                try:
                    number = 0
                    while outsider.poll() is None:
                        number += 1
                        outcomes += one_round(folder / f"round-{number}", model, spec)
                    assert outsider.stdout is not None, "it was asked for"
                    lines = outsider.stdout.read().splitlines()
                finally:
                    outsider.kill()
        at_the_end = servers.report()
        after = train_with(store.port, bundle, secret, folder)
    finally:
        servers.stop()
    failed = [outcome for outcome in outcomes if outcome["failure"] is not None]
    tried = json.loads(lines[-1]) if lines else {}
    return {
        "minutes": seconds / 60.0,
        "trials": {"num": len(outcomes), "num_failed": len(failed), "failed": failed[:20]},
        "servers": at_the_end,
        "training_after": after,
        "outsider": tried,
        "holds": bool(
            outcomes and not failed and tried and all(one["runs"] for one in at_the_end.values()) and after["done"]
        ),
    }


if __name__ == "__main__":
    run(main)
