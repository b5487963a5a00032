"""`python -m autosync.script_tuning.rank ADDRESS`: a rank that runs a script and tries strategies on its steps.

The script runs in the main thread. Wherever one of its steps begins, and the steps that were asked for are made, the
rank answers with their times and waits for the next request. Every rank gets the same requests in the same order, and
each asks for a number of steps, so all ranks change the strategy at the same step.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from autosync import documents
from autosync.errors import AutosyncError, OperationError
from autosync.inputs.process_input import take_sums
from autosync.script.program import MainProgram
from autosync.script.switching_door import SwitchingDoor
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import parse_cluster
from autosync.specs.model import SCHEMA_KIND, SCHEMA_VERSION, ModelSpec
from autosync.specs.model_file import dump_model
from autosync.strategy.bundle import Bundle
from autosync.strategy.files import parse_strategy
from autosync.trials import meters
from autosync.trials.rank_requests import Answer, RefusedError, Request, RequestLoop, open_requests


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Steps that were asked for: the request, the number of steps before them, and the meters when they began."""

    request: Request
    num_before: int
    meters: meters.Reading


class ScriptRank:
    """Runs the script on this rank, and handles requests where its steps begin."""

    def __init__(self) -> None:
        self.doing = "waiting for the script"
        self._loop: RequestLoop
        self._run: _Run | None = None
        self._interface = os.environ.get("GLOO_SOCKET_IFNAME")
        self._name = ""
        self._model: ModelSpec | None = None
        self._cluster: ClusterSpec | None = None
        self._is_kept = False
        self._is_over = False
        self._is_stopping = False

    @property
    def requests(self) -> Mapping[str, Callable[[Request], Answer]]:
        """No request is handled apart from the script."""
        return {}

    def where(self) -> str:
        """Return the present activity in words."""
        return self.doing

    def idle_seconds(self) -> None:
        """Tell of no steps: a request has one deadline."""

    # The script.

    def serve(self, loop: RequestLoop) -> int:
        """Run the script that the first request names; return the exit code where the script itself has none."""
        self._loop = loop
        request = loop.next_request()
        try:
            program = self._prepared(request)
        except AutosyncError as error:
            loop.fail(request, error)
            return 2
        loop.answer(request, {})
        door = SwitchingDoor(self)
        try:
            with door.open():
                program.run()
        except SystemExit as end:
            if self._is_stopping:
                return 0
            if end.code not in (None, 0):
                self._tell_end(OperationError(f"{program.name} has ended with exit code {end.code}"))
                raise
        except BaseException as error:
            self._tell_end(error)
            if self._is_kept:
                raise
            return 1
        self._tell_end(OperationError(_ended_early(program.name, door)))
        return 0 if self._is_kept else 1

    def _prepared(self, request: Request) -> MainProgram:
        """Take the environment in which `torchrun` would run the script, and read the script."""
        os.environ.update(request["environments"][int(os.environ["RANK"])])
        if not request["has_safe_path"]:
            # The launcher has set it for this program alone.
            os.environ.pop("PYTHONSAFEPATH", None)
        # torch has read the number of threads already.
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        self._name = request["name"]
        return MainProgram(request["command"])

    def _tell_end(self, error: BaseException) -> None:
        """Answer the open request, or the next one, with what ended the script.

        A script that was only watched may end, with or without an error.
        """
        if self._is_over:
            return
        request = self._run.request if self._run is not None else self._loop.next_request()
        if request["request"] == "train":
            self._loop.answer(request, {"has_ended": True})
        else:
            self._loop.fail(request, error)

    # Where steps begin.

    def step_begins(self, door: SwitchingDoor) -> None:
        """Finish the run whose steps are made, and handle requests until the next run begins."""
        if self._is_stopping:
            # The script has caught what should have ended it.
            sys.stdout.flush()
            os._exit(0)
        if self._is_over:
            door.meter.take()
        if self._run is not None:
            if door.meter.num_steps - self._run.num_before < self._run.request["num_steps"]:
                return
            run, self._run = self._run, None
            self._finish(door, run)
        while self._is_idle:
            request = self._loop.next_request()
            try:
                self._handle(door, request)
            except AutosyncError as error:
                self._loop.fail(request, RefusedError(str(error)))
            except Exception as error:
                # It also ends the script: other ranks may have changed the strategy.
                self._loop.fail(request, error)
                raise

    def _finish(self, door: SwitchingDoor, run: _Run) -> None:
        """Answer with what a run has shown, or with the reason why stock DDP has trained instead."""
        refusal, door.refusal = door.refusal, None
        if refusal is not None:
            self._loop.fail(run.request, RefusedError(str(refusal)))
            return
        try:
            result = self._result(door, run)
        except Exception as error:  # noqa: BLE001 - each request gets an answer
            self._loop.fail(run.request, error)
        else:
            self._loop.answer(run.request, result)

    @property
    def _is_idle(self) -> bool:
        """Whether the next request comes before the script's next step."""
        return self._run is None and not self._is_over

    def _handle(self, door: SwitchingDoor, request: Request) -> None:
        match request["request"]:
            case "observe":
                door.observe()
                self._run = self._begun(door, request)
            case "fit":
                self._model = documents.parse(
                    documents.without_file(request["model"]), kind=SCHEMA_KIND, version=SCHEMA_VERSION, into=ModelSpec
                )
                self._cluster = parse_cluster(documents.without_file(request["cluster"]))
                self._loop.answer(request, {})
            case "run":
                self._change(door, request)
                self._run = self._begun(door, request)
            case "train":
                self._is_kept = door.is_tuned = True
                self._change(door, request)
                self._run = self._begun(door, request)
            case "leave":
                self._is_over = True
                self._loop.answer(request, {})
            case "stop":
                door.train_by(None)
                self._is_over = self._is_stopping = True
                self._loop.answer(request, {})
                raise SystemExit(0)
            case other:
                raise OperationError(f"a rank of a script knows no request {other!r}")

    def _begun(self, door: SwitchingDoor, request: Request) -> _Run:
        self.doing = f"in {request['request']}"
        # Steps before the run are of no use any more.
        door.meter.take()
        return _Run(request=request, num_before=door.meter.num_steps, meters=meters.read_meters(self._interface))

    def _change(self, door: SwitchingDoor, request: Request) -> None:
        """Have the strategy of a request in place; None is stock DDP."""
        present = door.switch.bundle
        if request["strategy_id"] == (None if present is None else present.strategy_id):
            return
        door.train_by(None if request["strategy"] is None else self._bundle(request))

    def _bundle(self, request: Request) -> Bundle:
        assert self._model is not None, "the model comes before its strategies"
        assert self._cluster is not None, "the cluster comes before its strategies"
        return Bundle(
            strategy=parse_strategy(documents.without_file(request["strategy"])),
            model=self._model,
            cluster=self._cluster,
            strategy_id=request["strategy_id"],
            plan_id=request["plan_id"],
        )

    def _result(self, door: SwitchingDoor, run: _Run) -> Answer:
        """Return the times of a run's steps, and of an observation also what was seen."""
        if run.request.get("settle"):
            door.switch.settle()
        steps = door.meter.take()
        after = meters.read_meters(self._interface)
        answer: dict[str, Any] = {
            "has_ended": False,
            "step_seconds": [one.seconds for one in steps],
            "gap_seconds": [one.gap_seconds for one in steps],
            "disturbances": [sorted(one.disturbances) for one in steps],
            "wait_seconds": [one.wait_seconds for one in steps],
            "lost_shares": [one.lost_share for one in steps],
            "num_left": [one.num_left for one in steps],
            "num_ahead": door.meter.reserves.num_ahead,
            "input": take_sums(wait_seconds=0.0, copy_seconds=0.0),
            "cpu_share": meters.cpu_share(run.meters, after),
            "bytes_sent": _difference(run.meters.sent_bytes, after.sent_bytes),
            "bytes_received": _difference(run.meters.received_bytes, after.received_bytes),
            "peak_memory_bytes": meters.peak_memory_bytes() or 0,
        }
        if run.request["request"] == "observe":
            answer |= self._seen(door)
        return answer

    def _seen(self, door: SwitchingDoor) -> Answer:
        """Return what an observation has seen, or refuse the script, which can go on under stock DDP."""
        try:
            facts = door.facts(self._name)
        except AutosyncError as error:
            raise RefusedError(str(error)) from error
        except Exception as error:
            raise RefusedError(f"its observed steps make no model: {type(error).__name__}: {error}") from error
        return {"model": dump_model(facts.model), "reasons": list(facts.reasons)}


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _ended_early(name: str, door: SwitchingDoor) -> str:
    if not door.was_used:
        return f"{name} has ended, and constructed no torch.nn.parallel.DistributedDataParallel"
    return (
        f"{name} has ended after {door.meter.num_steps} steps of its optimizer, before tuning was over (let it train "
        "for more steps, or try fewer strategies: --trials)"
    )


def _serve_only(loop: RequestLoop) -> None:
    """Answer on a rank that only serves, and has no part in the steps of a script."""
    while True:
        loop.answer(loop.next_request(), {})


def main(address: str) -> int:
    """Run as a rank; return the exit code."""
    rank = ScriptRank()
    loop = open_requests(address, lambda _rank, _tell: rank)
    if int(os.environ["RANK"]) >= int(os.environ["WORLD_SIZE"]):
        _serve_only(loop)
    return rank.serve(loop)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
