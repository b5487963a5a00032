"""One rank of a trial service: `python -m autosync.trials.rank_worker ADDRESS`."""

from __future__ import annotations

import datetime as dt
import gc
import math
import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosync import documents
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import parse_cluster
from autosync.specs.compute_pace import at_pace, paces_of
from autosync.specs.model import SCHEMA_KIND, SCHEMA_VERSION, ModelSpec
from autosync.specs.rank_variables import rank_threads
from autosync.specs.task import Task
from autosync.specs.task_file import is_task, load_task
from autosync.specs.task_run import build_model
from autosync.strategy.bundle import Bundle
from autosync.strategy.emit.settings import DdpSettings
from autosync.strategy.files import parse_strategy
from autosync.strategy.shares import weights_of
from autosync.trials import meters
from autosync.trials.plain_sgd import with_plain_sgd, with_plain_sgd_spec
from autosync.trials.rank_device import rank_device
from autosync.trials.rank_requests import Answer, Request, serve_requests
from autosync.trials.rendezvous import open_on_first_rank, rendezvous_store
from autosync.trials.replay import replay_task
from autosync.trials.serving import Serving
from autosync.trials.staged_replay import StageReplayer
from autosync.trials.staged_training import StagedTraining
from autosync.trials.training import CPU, ContestantTraining

MAX_TIMELINE_CHARACTERS = 4 * 2**20
"""The longest part of a timeline that is sent."""


class RankWorker:
    """Handles the trial service's requests on this rank."""

    def __init__(self, rank: int) -> None:
        torch.set_num_threads(rank_threads())
        self.doing = "waiting for the service"
        self._rank = rank
        self._interface: str | None = None
        self._trainings: dict[str, ContestantTraining | StagedTraining] = {}
        self._servings: dict[str, Serving] = {}
        self._num_runs = 0
        self._node = ""
        self._servers: tuple[int, ...] = ()
        self._serves = False
        self._store: Any = None
        self._opened: Any = None
        self._running: ContestantTraining | StagedTraining | None = None
        self._stepped_at: float | None = None
        self._device = CPU
        self._ddp_group: dist.ProcessGroup | None = None
        self._task: Task
        self._model: ModelSpec
        self._cluster: ClusterSpec
        self._is_replayed = False
        self._seed = 0
        self._timeout_seconds = 0.0

    @property
    def requests(self) -> Mapping[str, Callable[[Request], Answer]]:
        """The functions that handle requests, by the request's name."""
        return {
            "meet": self.meet,
            "join": self.join,
            "prepare": self.prepare,
            "run": self.run,
            "release": self.release,
            "difference": self.difference,
            "timeline": self.timeline,
        }

    def meet(self, _request: Request) -> Answer:
        """On the first rank, open a port where the ranks can meet."""
        self._opened, answer = open_on_first_rank(self._rank)
        return answer

    def join(self, request: Request) -> Answer:
        """Load the task and meet the other ranks."""
        self._seed = request["seed"]
        self._timeout_seconds = request["timeout_seconds"]
        self._cluster = parse_cluster(documents.without_file(request["cluster"]))
        self._interface = meters.counted_interface(self._cluster)
        self._model = documents.parse(
            documents.without_file(request["model"]), kind=SCHEMA_KIND, version=SCHEMA_VERSION, into=ModelSpec
        )
        target = request["target"]
        self._is_replayed = not is_task(target)
        self._task = replay_task(self._model) if self._is_replayed else load_task(target)
        num_workers = self._cluster.num_workers
        self._node = self._cluster.nodes[self._cluster.ranks[self._rank].node].name
        self._servers = tuple(range(num_workers, len(self._cluster.ranks)))
        self._serves = self._rank in self._servers
        # Only workers are in torch's process group.
        self._store = rendezvous_store(
            request["rendezvous"],
            opened=self._opened,
            num_users=-1 if self._serves else num_workers,
            timeout_seconds=self._timeout_seconds,
        )
        if not self._serves:
            dist.init_process_group(
                "gloo",
                store=self._store,
                rank=self._rank,
                world_size=num_workers,
                timeout=dt.timedelta(seconds=self._timeout_seconds),
            )
            self._use_device()
        return {}

    def _use_device(self) -> None:
        """Train on this rank's device. The ranks agree over gloo; on GPUs, stock DDP has a group of NCCL."""
        self._device = rank_device(self._cluster, self._rank)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            timeout = dt.timedelta(seconds=self._timeout_seconds)
            self._ddp_group = dist.new_group(backend="nccl", timeout=timeout)

    def prepare(self, request: Request) -> Answer:
        """Build a contestant's model and optimizer for training with the other ranks; on a server rank, its server."""
        if not self._trainings:
            # Present objects stay. If they were not frozen, each garbage collection would look through all of torch.
            gc.collect()
            gc.freeze()
        meters.reset_peak_memory()
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        bundle = None
        # The rank gets no plan, but lowers the strategy itself, once. So messages stay short, and all ranks prove that
        # they made the same plan from the same strategy, as they will in training.
        if request["strategy"] is not None:
            bundle = Bundle(
                strategy=parse_strategy(documents.without_file(request["strategy"])),
                model=self._model,
                cluster=self._cluster,
                strategy_id=request["strategy_id"],
                plan_id=request["plan_id"],
            )
        task = self._task_at_pace(bundle)
        if request["plain_sgd"]:
            task, bundle = with_plain_sgd(task), bundle and with_plain_sgd_spec(bundle)
        if self._serves:
            self._servings[request["name"]] = Serving(
                task,
                bundle=bundle,
                node=self._node,
                store=self._store,
                seed=self._seed,
                timeout_seconds=self._timeout_seconds,
            )
            return {}
        if bundle is not None and bundle.strategy.stages:
            staged = self._trainings[request["name"]] = self._staged(task, bundle)
            return {"num_turn_steps": staged.num_turn_steps}
        training = ContestantTraining(
            task,
            bundle=bundle,
            ddp=DdpSettings.from_plain(request["ddp"]),
            trace=Path(request["trace"]) if request.get("trace") else None,
            seed=self._seed,
            rank=self._rank,
            timeout_seconds=self._timeout_seconds,
            node=self._node,
            device=self._device,
            group=self._ddp_group,
            deals_shares=not self._is_replayed,
        )
        self._trainings[request["name"]] = training
        return {"num_turn_steps": training.num_turn_steps}

    def _staged(self, task: Task, bundle: Bundle) -> StagedTraining:
        """Train with stages; in a replay, their passes take the time of the spec's layers on this rank's device."""
        how: dict[str, Any] = {"seed": self._seed, "timeout_seconds": self._timeout_seconds}
        if self._is_replayed:
            pace = paces_of(self._model, self._cluster)[self._rank]
            replayer = StageReplayer(at_pace(self._model, pace), self._rank)
            task = replace(task, batch=lambda _: torch.zeros(task.batch_size))
            return StagedTraining(task, bundle=bundle, make_stages=replayer, **how)
        return StagedTraining(task, bundle=bundle, **how)

    def _task_at_pace(self, bundle: Bundle | None) -> Task:
        """Return the task; a replay at the pace of this rank's device, with its share of the batch."""
        if not self._is_replayed or self._serves:
            return self._task
        shares = bundle.strategy.shares if bundle is not None else ()
        batching = bundle.strategy.batching if bundle is not None else None
        pace = paces_of(self._model, self._cluster, shares, batching)[self._rank]
        return replay_task(
            self._model,
            pace=pace,
            share=weights_of(shares)[self._rank] if shares else 1.0,
            rank=self._rank,
            num_ranks=self._cluster.num_workers,
        )

    def run(self, request: Request) -> Answer:
        """Train a contestant for some steps; return the time of each step and the readings of the meters."""
        self._num_runs += 1
        if self._serves:
            return self._watch(request["num_steps"])
        self._stepped_at = None
        training = self._trainings[request["name"]]
        dist.barrier()
        before = meters.read_meters(self._interface)
        if self._rank == 0 and self._servers:
            keys = [self._key(f"watches/{server}") for server in self._servers]
            self._store.wait(keys, dt.timedelta(seconds=self._timeout_seconds))
        # No rank's steps begin while another rank still reads its meters.
        dist.barrier()
        self._running = training
        training.go_on()
        for number in range(request["num_steps"]):
            self.doing = f"in step {number + 1} of {request['num_steps']}"
            training.step()
            self._stepped_at = time.monotonic()
        if request["settle"]:
            self.doing = "waiting for what its steps have left under way"
            training.settle()
        training.pause()
        if request["settle"] and training.num_turn_steps:
            # Its workers have stopped. What they have asked for still comes, over the links of the next contestant.
            meters.wait_until_quiet(self._interface)
        self._running = None
        self.doing = "waiting for the other ranks to end their steps"
        dist.barrier()
        if self._rank == 0 and self._servers:
            self._store.set(self._key("over"), "")
        return {
            "step_seconds": training.take_seconds(),
            "losses": [loss if math.isfinite(loss) else None for loss in training.take_losses()],
            **_read_since(before, self._interface),
            "peak_memory_bytes": self._peak_memory_bytes(),
            "input": None if self._is_replayed else training.take_input(),
        }

    def _peak_memory_bytes(self) -> int:
        """Return the peak of the memory that is scarce: that of the GPU if there is one, else this program's."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return meters.peak_memory_bytes() or 0

    def _watch(self, num_steps: int) -> Answer:
        """On a rank that only serves, return the readings of its meters while workers took their steps."""
        before = meters.read_meters(self._interface)
        self._store.set(self._key(f"watches/{self._rank}"), "")
        self._store.wait([self._key("over")], dt.timedelta(seconds=num_steps * self._timeout_seconds))
        return _read_since(before, self._interface)

    def _key(self, what: str) -> str:
        return f"autosync/trials/{self._num_runs}/{what}"

    def difference(self, request: Request) -> Answer:
        """Return the distance between the parameters of two contestants, relative to the first one's change so far."""
        if self._serves:
            return {"difference": 0.0}
        first, second = (self._trainings[name].parameters for name in request["names"])
        torch.manual_seed(self._seed)
        random.seed(self._seed)
        begun = dict(build_model(self._task).to(self._device).named_parameters())
        apart = moved = 0.0
        for name, parameter in first.items():
            apart += float((second[name].double() - parameter.double()).square().sum())
            moved += float((parameter.double() - begun[name].detach().double()).square().sum())
        share = math.sqrt(apart / moved) if moved else 0.0
        return {"difference": share if math.isfinite(share) else None}

    def timeline(self, request: Request) -> Answer:
        """Remove the file of a traced contestant's timeline; on the first rank, return what it held."""
        training = self._trainings.get(request["name"])
        if training is None or training.trace_file is None:
            return {"timeline": ""}
        text = training.trace_file.read_text(encoding="utf-8") if self._rank == 0 else ""
        training.trace_file.unlink()
        # A timeline that is cut off at a line is read as far as it goes.
        return {"timeline": text[: text.rfind("\n", 0, MAX_TIMELINE_CHARACTERS) + 1]}

    def release(self, request: Request) -> Answer:
        """Remove a contestant from this rank."""
        if self._serves:
            self._servings.pop(request["name"]).close()
        else:
            self._trainings.pop(request["name"]).close()
        return {}

    def where(self) -> str:
        """Return what this rank is doing, in words. Called by another thread."""
        training = self._running
        told = training.where() if training is not None else None
        return self.doing if told is None else f"{self.doing}, {told}"

    def idle_seconds(self) -> float | None:
        """Return how long ago the last step of a run has ended; None before the first. Called by another thread."""
        return None if self._stepped_at is None else time.monotonic() - self._stepped_at


def _read_since(before: meters.Reading, interface: str | None) -> Answer:
    after = meters.read_meters(interface)
    return {
        "cpu_share": meters.cpu_share(before, after),
        "bytes_sent": _difference(before.sent_bytes, after.sent_bytes),
        "bytes_received": _difference(before.received_bytes, after.received_bytes),
    }


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


if __name__ == "__main__":
    serve_requests(sys.argv[1], lambda rank, _: RankWorker(rank))
