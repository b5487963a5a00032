"""The ranks of `bytes_on_the_wire.py`: `python ranks.py FOLDER` counts the bytes of every case in FOLDER."""

from __future__ import annotations

import datetime as dt
import faulthandler
import json
import os
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosync.plan.lowering import lower
from autosync.runtime.parallelize import drain, parallelize, release
from autosync.runtime.serving.invitations import servers_of
from autosync.runtime.serving.serve import Server
from autosync.specs.task_run import build_model, build_optimizer, compute_loss, draw_batch, run_backward, step_optimizer
from autosync.strategy.bundle import Bundle, load_bundle
from autosync.trials.meters import Reading, read_meters

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.wire.tasks import TASKS

# Stock DDP rebuilds its buckets in the first steps.
NUM_WARMUP_STEPS, NUM_STEPS = 2, 4
TIMEOUT_SECONDS = 60.0
START_SECONDS = 60.0
CASE_SECONDS = 60.0
SEED = 7


def generator_of(rank: int) -> torch.Generator:
    """Return the generator of a rank's batches."""
    return torch.Generator().manual_seed(SEED * 1_000_003 + rank)


class Meeting:
    """A barrier of all ranks through a file, so that it sends nothing over the links."""

    def __init__(self, path: Path, rank: int, num_ranks: int) -> None:
        self._store: Any = dist.FileStore(str(path), -1)  # type: ignore[attr-defined]
        self._rank = rank
        self._num_ranks = num_ranks
        self._number = 0

    def wait(self) -> None:
        self._number += 1
        self._store.set(f"{self._number}/{self._rank}", "here")
        everyone = [f"{self._number}/{rank}" for rank in range(self._num_ranks)]
        self._store.wait(everyone, dt.timedelta(seconds=CASE_SECONDS))

    def read(self) -> Reading:
        """Return this host's meters while no rank sends anything."""
        self.wait()
        reading = read_meters(os.environ["GLOO_SOCKET_IFNAME"])
        self.wait()
        return reading


def run_rank(folder: Path) -> int:
    """Run all cases, as a worker or as its node's server; write the counts of this rank."""
    rank = int(os.environ["RANK"])
    work = json.loads((folder / "work.json").read_text())
    # If the process that started the ranks is gone, they end themselves.
    faulthandler.dump_traceback_later(START_SECONDS + CASE_SECONDS * len(work), exit=True)
    cluster = load_bundle(folder / "case-0.json").cluster
    meeting = Meeting(folder / "meeting", rank, len(cluster.ranks))
    num_workers = cluster.num_workers
    node = cluster.nodes[cluster.ranks[rank].node].name if rank >= num_workers else None
    store: Any = dist.FileStore(str(folder / "rendezvous"), -1 if node else num_workers)  # type: ignore[attr-defined]
    if not node:
        timeout = dt.timedelta(seconds=TIMEOUT_SECONDS)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=num_workers, timeout=timeout)
    with (folder / f"counts-{rank}").open("w", encoding="utf-8") as counts:
        for number, one in enumerate(work):
            bundle = load_bundle(folder / f"case-{number}.json")
            if node:
                found = serve(bundle, store, node, meeting)
            else:
                found = train(bundle, one["task"], rank, meeting, hand_off=one["hand_off"])
            counts.write(json.dumps(asdict(found)) + "\n")
            counts.flush()
    if not node:
        dist.destroy_process_group()
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """The bytes through this host's interface in a step."""

    sent: float
    received: float


def train(bundle: Bundle, task_name: str, rank: int, meeting: Meeting, *, hand_off: bool) -> Bytes:
    """Count on a worker."""
    task = TASKS[task_name]
    torch.manual_seed(SEED)
    model = build_model(task)
    optimizer = build_optimizer(task, model.parameters())
    parallelize(model, optimizer, bundle, hand_off=hand_off, init_sync=False, timeout_seconds=TIMEOUT_SECONDS)
    batches = generator_of(rank)

    def step() -> None:
        optimizer.zero_grad()
        run_backward(task, compute_loss(task, model, draw_batch(task, batches)))
        step_optimizer(task, optimizer)

    for _ in range(NUM_WARMUP_STEPS):
        step()
    drain(model)
    before = meeting.read()
    for _ in range(NUM_STEPS):
        step()
    drain(model)
    after = meeting.read()
    release(model)
    return _between(before, after)


def serve(bundle: Bundle, store: Any, node: str, meeting: Meeting) -> Bytes:
    """Count on a host that only serves, with a server if the plan needs one."""
    threads = []
    if servers_of(lower(bundle.strategy, bundle.model, bundle.cluster)):
        server = Server(bundle, node=node, timeout_seconds=TIMEOUT_SECONDS)
        threads.append(threading.Thread(target=lambda: server.train(store, server.await_workers(store)), daemon=True))
    for thread in threads:
        thread.start()
    before, after = meeting.read(), meeting.read()
    for thread in threads:
        thread.join(TIMEOUT_SECONDS)
    return _between(before, after)


def _between(before: Reading, after: Reading) -> Bytes:
    told = (before.sent_bytes, before.received_bytes, after.sent_bytes, after.received_bytes)
    sent_before, received_before, sent_after, received_after = told
    assert sent_before is not None, "an emulated host has an interface"
    assert received_before is not None, "of which the system tells both"
    assert sent_after is not None, "and goes on to"
    assert received_after is not None, "and goes on to"
    return Bytes(sent=(sent_after - sent_before) / NUM_STEPS, received=(received_after - received_before) / NUM_STEPS)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(run_rank(Path(sys.argv[1])))
