"""The engine: one thread a rank that executes the operations of a plan, in their order, beside the training loop.

The order of a plan's operations is the same on all ranks and puts everything behind what it waits for, so a thread
that follows it can neither deadlock nor mix messages up. The training thread tells it what happened (a gradient is
ready, `step()` was called) and waits where the plan has a gate. An error in the thread ends the step in the training
thread, with the operation's name.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from autosync.errors import OperationError
from autosync.plan.types import Edge, Local, Plan, Transfer
from autosync.runtime.owned import OwnedUpdate
from autosync.runtime.tensors import RegionTensors
from autosync.runtime.transfers import Mover


class Engine:
    """Executes a plan for one rank."""

    def __init__(
        self,
        plan: Plan,
        parameters: Mapping[str, torch.nn.Parameter],
        variables: Sequence[str],
        optimizer: torch.optim.Optimizer,
        group: dist.ProcessGroup,
        *,
        timeout_seconds: float = 300.0,
    ) -> None:
        self._plan = plan
        self._rank = dist.get_rank(group)
        self._timeout_seconds = timeout_seconds
        self._optimizer = optimizer
        self._variable_index = {name: index for index, name in enumerate(variables)}
        self._tensors = RegionTensors(plan, parameters)
        self._mover = Mover(plan, self._tensors, group, timeout_seconds)
        self._mine = [i for i, o in enumerate(plan.operations) if any(self._rank in g for g in o.groups)]
        self._owned = self._own(parameters)
        self._gates = {gate.kind: gate.after for gate in plan.gates}
        self._news = threading.Condition()
        self._ready: set[int] = set()
        self._step_is_called = False
        self._options: list[dict[str, Any]] = []
        self._done: set[int] = set()
        self._begun = False
        self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="autosync-engine", daemon=True)
        self._thread.start()

    def _own(self, parameters: Mapping[str, torch.nn.Parameter]) -> dict[int, OwnedUpdate]:
        positions = {id(p): i for i, group in enumerate(self._optimizer.param_groups) for p in group["params"]}
        group_of = {name: positions[id(p)] for name, p in parameters.items() if id(p) in positions}
        owned: dict[int, OwnedUpdate] = {}
        for index in self._mine:
            operation = self._plan.operations[index]
            if isinstance(operation, Local) and operation.kind == "update" and not self._is_the_users(operation):
                owned[index] = OwnedUpdate(
                    plan=self._plan,
                    operation=operation,
                    rank=self._rank,
                    tensors=self._tensors,
                    optimizer=self._optimizer,
                    group_of=group_of,
                )
        return owned

    def _is_the_users(self, operation: Local) -> bool:
        """Whether the user's optimizer does an update itself: where every worker updates the whole."""
        return not operation.sharded and len(operation.groups[0]) == self._plan.num_workers

    def engine_updated(self) -> frozenset[str]:
        """The variables whose updates are the engine's own, on whichever rank."""
        return frozenset(
            self._plan.parts[self._plan.regions[index].part].variable.name
            for operation in self._plan.operations
            if isinstance(operation, Local) and operation.kind == "update" and not self._is_the_users(operation)
            for index in operation.outputs
        )

    def gradient_ready(self, name: str) -> None:
        """A variable's gradient of this step is complete; the first of a step begins it."""
        with self._news:
            self._begun = True
            self._ready.add(self._variable_index[name])
            self._news.notify_all()

    def all_gradients_ready(self) -> None:
        """Backward has come to its end: what has no gradient by now gets none in this step."""
        with self._news:
            self._begun = True
            self._ready.update(self._variable_index.values())
            self._news.notify_all()

    def step_called(self) -> None:
        """The user calls `optimizer.step()`: the options of this moment are those of the step."""
        with self._news:
            self._options = [{k: v for k, v in g.items() if k != "params"} for g in self._optimizer.param_groups]
            self._step_is_called = True
            self._news.notify_all()

    def wait(self, gate: str) -> None:
        """Wait at a gate of the plan; raises what went wrong in the engine's thread."""
        edges = self._gates.get(gate, ())  # type: ignore[call-overload]
        with self._news:
            if not self._news.wait_for(lambda: self._error or self._met(edges), self._timeout_seconds):
                raise OperationError(f"no progress within {self._timeout_seconds:g} s: {self._where()}")
            if self._error is not None:
                raise OperationError(f"rank {self._rank}: {self._where()} failed: {self._error}") from self._error

    def end_step(self) -> None:
        """Everything of this step is done: back to the start."""
        with self._news:
            if not self._news.wait_for(
                lambda: self._error or len(self._done) == len(self._mine), self._timeout_seconds
            ):
                raise OperationError(f"the step does not end within {self._timeout_seconds:g} s: {self._where()}")
            self._ready.clear()
            self._done.clear()
            self._step_is_called = False
            self._begun = False
            self._news.notify_all()

    def close(self) -> None:
        """End the thread. Nothing may be under way."""
        with self._news:
            self._closed = True
            self._news.notify_all()
        self._thread.join(self._timeout_seconds)

    def _met(self, edges: Sequence[Edge]) -> bool:
        return all(
            edge.event != "operation" or edge.target not in self._mine or edge.target in self._done for edge in edges
        )

    def _where(self) -> str:
        """The operation under way, for errors."""
        index = next((i for i in self._mine if i not in self._done), None)
        if index is None:
            return "nothing under way"
        operation = self._plan.operations[index]
        what = operation.collective if isinstance(operation, Transfer) else operation.kind
        return f"{what} of {', '.join(self._plan.messages[operation.message][:3])} (operation {index})"

    def _run(self) -> None:
        while self._await_step():
            for index in self._mine:
                try:
                    if not self._await(self._plan.operations[index].after):
                        return
                    self._execute(index)
                except Exception as error:  # noqa: BLE001 - whatever it is, the training thread must hear of it
                    with self._news:
                        self._error = error
                        self._news.notify_all()
                    return
                with self._news:
                    self._done.add(index)
                    self._news.notify_all()
            with self._news:
                self._news.wait_for(lambda: self._closed or not self._done)

    def _await_step(self) -> bool:
        with self._news:
            self._news.wait_for(lambda: self._closed or self._begun)
            return not self._closed

    def _await(self, edges: Sequence[Edge]) -> bool:
        """Wait for this rank's events; operations are waited for by their order."""
        with self._news:
            self._news.wait_for(lambda: self._closed or all(self._has_happened(edge) for edge in edges))
            return not self._closed

    def _has_happened(self, edge: Edge) -> bool:
        if edge.event == "grad_ready":
            return edge.target in self._ready
        return edge.event == "operation" or self._step_is_called

    @torch.no_grad()
    def _execute(self, index: int) -> None:
        operation = self._plan.operations[index]
        if isinstance(operation, Transfer):
            self._mover.move(index, operation)
        elif operation.kind == "average":
            buffer = self._tensors.read(operation.inputs)
            buffer /= self._plan.num_workers
            self._tensors.write(operation.outputs, buffer)
        elif index in self._owned:
            self._owned[index].run(self._options)
        # What remains is the user's: an update that every worker does for itself, and the norm for their own clipping.
