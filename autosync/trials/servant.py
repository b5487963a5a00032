"""One rank of a trial service: `python -m autosync.trials.servant ADDRESS`.

The service asks and the rank answers, one answer for each request. The main thread does what is asked; another one
listens, so that a rank whose training hangs can still say where it is, and so that it ends when the service does.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime as dt
import gc
import math
import os
import queue
import random
import select
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosync import disks, documents
from autosync.documents import Document
from autosync.errors import AutosyncError, OperationError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import parse_cluster
from autosync.specs.model import SCHEMA_KIND, SCHEMA_VERSION, ModelSpec
from autosync.specs.task import Task
from autosync.specs.task_file import is_task, load_task
from autosync.specs.task_run import build_model
from autosync.strategy.bundle import Bundle
from autosync.strategy.emit.settings import DdpSettings
from autosync.strategy.files import parse_strategy
from autosync.trials import control, meters
from autosync.trials.meeting import meet_at, open_port
from autosync.trials.plain_sgd import with_plain_sgd, with_plain_sgd_spec
from autosync.trials.replay import replay_task
from autosync.trials.serving import Serving
from autosync.trials.training import RefusedError, Training

Answer = dict[str, Any]


class Servant:
    """Does on this rank what the service asks for; its methods are the requests."""

    def __init__(self, rank: int) -> None:
        self.doing = "waiting for the service"
        self._rank = rank
        self._interface = os.environ.get("GLOO_SOCKET_IFNAME")
        self._trainings: dict[str, Training] = {}
        self._servings: dict[str, Serving] = {}
        self._num_runs = 0
        self._node = ""
        self._servers: tuple[int, ...] = ()
        self._serves = False
        self._store: Any = None
        self._opened: Any = None
        self._running: Training | None = None
        self._task: Task
        self._model: ModelSpec
        self._cluster: ClusterSpec
        self._seed = 0
        self._timeout_seconds = 0.0

    def meet(self, _request: Mapping[str, Any]) -> Answer:
        """Open a port where the ranks may meet, on the first of them."""
        if self._rank:
            return {}
        self._opened = open_port()
        return {"port": self._opened.port}

    def join(self, request: Mapping[str, Any]) -> Answer:
        """Load the task and meet the other ranks."""
        self._seed = request["seed"]
        self._timeout_seconds = request["timeout_seconds"]
        self._cluster = parse_cluster(_document(request["cluster"]))
        self._model = documents.parse(
            _document(request["model"]), kind=SCHEMA_KIND, version=SCHEMA_VERSION, into=ModelSpec
        )
        target = request["target"]
        self._task = load_task(target) if is_task(target) else replay_task(self._model)
        num_workers = self._cluster.num_workers
        self._node = self._cluster.nodes[self._cluster.ranks[self._rank].node].name
        self._servers = tuple(range(num_workers, len(self._cluster.ranks)))
        self._serves = self._rank in self._servers
        # Workers alone are in torch's process group.
        self._store = meet_at(
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
        return {}

    def prepare(self, request: Mapping[str, Any]) -> Answer:
        """Build a contestant's model and optimizer and make them train in parallel."""
        if not self._trainings:
            # What is here now stays. Without this every collection after a contestant looks through all of torch.
            gc.collect()
            gc.freeze()
        meters.reset_peak_memory()
        bundle = None
        if request["strategy"] is not None:
            bundle = Bundle(
                strategy=parse_strategy(_document(request["strategy"])),
                model=self._model,
                cluster=self._cluster,
                strategy_id=request["strategy_id"],
                plan_id=request["plan_id"],
            )
        task = self._task
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
        self._trainings[request["name"]] = Training(
            task,
            bundle=bundle,
            ddp=DdpSettings.from_plain(request["ddp"]),
            trace=Path(request["trace"]) if request.get("trace") else None,
            seed=self._seed,
            rank=self._rank,
            timeout_seconds=self._timeout_seconds,
        )
        return {}

    def run(self, request: Mapping[str, Any]) -> Answer:
        """Train a contestant for some steps: how long each took, and what the machine's meters say of them."""
        self._num_runs += 1
        if self._serves:
            return self._watch()
        training = self._trainings[request["name"]]
        dist.barrier()
        before = meters.read_meters(self._interface)
        if self._rank == 0 and self._servers:
            keys = [self._key(f"watches/{server}") for server in self._servers]
            self._store.wait(keys, dt.timedelta(seconds=self._timeout_seconds))
        # Nobody's steps begin while another still reads.
        dist.barrier()
        seconds = []
        self._running = training
        for number in range(request["num_steps"]):
            self.doing = f"in step {number + 1} of {request['num_steps']}"
            seconds.append(training.step())
        if request["settle"]:
            self.doing = "waiting for what its steps have left under way"
            training.settle()
        self._running = None
        self.doing = "waiting for the other ranks to end their steps"
        dist.barrier()
        if self._rank == 0 and self._servers:
            self._store.set(self._key("over"), "")
        return {
            "step_seconds": seconds,
            "losses": [loss if math.isfinite(loss) else None for loss in training.take_losses()],
            **_read_since(before, self._interface),
            "peak_memory_bytes": meters.peak_memory_bytes() or 0,
        }

    def _watch(self) -> Answer:
        """On a rank that only serves: what went over its link while workers took their steps."""
        before = meters.read_meters(self._interface)
        self._store.set(self._key(f"watches/{self._rank}"), "")
        self._store.wait([self._key("over")], dt.timedelta(seconds=self._timeout_seconds))
        return _read_since(before, self._interface)

    def _key(self, what: str) -> str:
        return f"autosync/trials/{self._num_runs}/{what}"

    def difference(self, request: Mapping[str, Any]) -> Answer:
        """How far two contestants' parameters are from each other, beside how far the first's have come."""
        if self._serves:
            return {"difference": 0.0}
        first, second = (self._trainings[name].parameters for name in request["names"])
        torch.manual_seed(self._seed)
        random.seed(self._seed)
        begun = dict(build_model(self._task).named_parameters())
        apart = moved = 0.0
        for name, parameter in first.items():
            apart += float((second[name].double() - parameter.double()).square().sum())
            moved += float((parameter.double() - begun[name].detach().double()).square().sum())
        share = math.sqrt(apart / moved) if moved else 0.0
        return {"difference": share if math.isfinite(share) else None}

    def release(self, request: Mapping[str, Any]) -> Answer:
        """Be rid of a contestant."""
        if self._serves:
            self._servings.pop(request["name"]).close()
        else:
            self._trainings.pop(request["name"]).close()
        return {}

    def where(self) -> str:
        """What this rank is doing, in words; for another thread to ask."""
        training = self._running
        told = training.where() if training is not None else None
        return self.doing if told is None else f"{self.doing}, {told}"


def _document(value: Any) -> Document:
    return Document(file="", value=value, lines={})


def _read_since(before: meters.Reading, interface: str | None) -> Answer:
    after = meters.read_meters(interface)
    return {
        "cpu_share": meters.cpu_share(before, after),
        "bytes_sent": _difference(before.sent_bytes, after.sent_bytes),
        "bytes_received": _difference(before.received_bytes, after.received_bytes),
    }


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


class Service:
    """This rank's side of the conversation with the service."""

    def __init__(self, channel: control.Channel, servant: Servant) -> None:
        self._channel = channel
        self._servant = servant
        self._requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._main = threading.get_ident()

    def listen(self) -> None:
        """Take requests until the service is gone; then this process ends, whatever it is in the middle of."""
        try:
            requests = self._channel.held()
            while True:
                for request in requests:
                    if request["request"] == "where":
                        self._answer(request, result={"where": self._where()})
                    else:
                        self._requests.put(request)
                select.select([self._channel], [], [])
                requests = self._channel.read()
        except control.ControlError as error:
            sys.stderr.write(f"the service is gone: {error}\n")
            sys.stderr.flush()
            os._exit(1)

    def _where(self) -> str:
        """What the main thread is doing, down to the line."""
        frame = sys._current_frames().get(self._main)  # noqa: SLF001 - the documented way to ask for another thread
        if frame is None:
            return self._servant.where()
        last = traceback.extract_stack(frame)[-1]
        return f"{self._servant.where()}, at {Path(last.filename).name}:{last.lineno} ({last.name})"

    def serve(self) -> None:
        """Do what is asked, one request after another."""
        methods = {
            "meet": self._servant.meet,
            "join": self._servant.join,
            "prepare": self._servant.prepare,
            "run": self._servant.run,
            "release": self._servant.release,
            "difference": self._servant.difference,
        }
        while True:
            request = self._requests.get()
            self._servant.doing = f"in {request['request']}"
            try:
                result = methods[request["request"]](request)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a trial's failure becomes data here
                # Its log may be on the disk that is full: then the answer is all that tells of it.
                with contextlib.suppress(OSError):
                    traceback.print_exc()
                kind = "refused" if isinstance(error, RefusedError) else "raised"
                self._answer(request, error={"kind": kind, "message": _in_words(error)})
            else:
                self._answer(request, result=result)
            self._servant.doing = "waiting for the service"

    def _answer(self, request: Mapping[str, Any], **outcome: Any) -> None:
        self._channel.send({"id": request["id"], **outcome})


def _in_words(error: BaseException) -> str:
    """What went wrong. What the engine raised within the user's backward pass is no fault of the user's line."""
    if isinstance(error.__cause__, OperationError):
        error = error.__cause__
    words = str(error) if isinstance(error, AutosyncError) else f"{type(error).__name__}: {error}"
    return words + disks.told(error)


def _end_with_whoever_started_this() -> None:
    """Let the system end this process when the thread that started it ends.

    The listening thread sees that the service is gone too, but not while the process is stopped, or the main thread is
    stuck where no other gets to run.
    """
    if sys.platform == "linux":
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, int(signal.SIGKILL))


def main(address: str) -> None:
    """Serve until the service is gone."""
    _end_with_whoever_started_this()
    rank = int(os.environ["RANK"])
    # Neither the task's code nor what it starts has any business with it.
    token = os.environ.pop(control.TOKEN_VARIABLE)
    torch.set_num_threads(1)
    servant = Servant(rank)
    service = Service(control.connect(address, token, rank), servant)
    threading.Thread(target=service.listen, name="autosync-control", daemon=True).start()
    service.serve()


if __name__ == "__main__":
    main(sys.argv[1])
