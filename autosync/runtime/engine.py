"""The engine: one thread a rank that executes the operations of a plan, in their order, beside the training loop.

The order of a plan's operations is the same on all ranks and puts everything behind what it waits for, so a thread
that follows it can neither deadlock nor mix messages up. The training thread tells it what happened (a gradient is
ready, `step()` was called) and waits where the plan has a gate. An error in the thread ends the step in the training
thread, with the operation's name.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from autosync.errors import OperationError
from autosync.plan.types import Edge, GateKind, Local, Plan, Transfer
from autosync.runtime.groups import Groups
from autosync.runtime.owned import OwnedUpdate
from autosync.runtime.tensors import RegionTensors
from autosync.runtime.transfers import Mover
from autosync.runtime.updates import EngineUpdates


class Engine:
    """Executes a plan for one rank."""

    def __init__(
        self,
        plan: Plan,
        *,
        updates: EngineUpdates,
        parameters: Mapping[str, torch.nn.Parameter],
        variables: Sequence[str],
        optimizer: torch.optim.Optimizer,
        groups: Groups,
        timeout_seconds: float,
    ) -> None:
        self._plan = plan
        self._rank = groups.rank
        self._timeout_seconds = timeout_seconds
        self._optimizer = optimizer
        self._variable_index = {name: index for index, name in enumerate(variables)}
        self._tensors = RegionTensors(plan, parameters)
        self._mover = Mover(plan, self._tensors, groups)
        mine = [i for i, o in enumerate(plan.operations) if any(self._rank in group for group in o.groups)]
        self._mine = dict.fromkeys(mine)
        self._owned = {index: self._own(index, parameters) for index in mine if index in updates.operations}
        self._gates = {gate.kind: gate.after for gate in plan.gates}
        self._news = threading.Condition()
        self._ready: set[int] = set()
        self._step_is_called = False
        self._options: list[dict[str, Any]] = []
        self._done: set[int] = set()
        self._begun = False
        self._num_steps = 0
        self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="autosync-engine", daemon=True)
        self._thread.start()

    def _own(self, index: int, parameters: Mapping[str, torch.nn.Parameter]) -> OwnedUpdate:
        operation = self._plan.operations[index]
        assert isinstance(operation, Local), "updates are local"
        return OwnedUpdate(
            plan=self._plan,
            operation=operation,
            rank=self._rank,
            tensors=self._tensors,
            parameters=parameters,
            optimizer=self._optimizer,
        )

    def gradient_ready(self, name: str) -> None:
        """A variable's gradient of this step is complete; the first of a step begins it."""
        with self._news:
            if self._variable_index[name] in self._ready:
                raise OperationError(f"the gradient of {name} was complete already in this step, and came again")
            self._begun = True
            self._ready.add(self._variable_index[name])
            self._news.notify_all()

    def all_gradients_ready(self) -> None:
        """Backward has come to its end: what came in earlier microsteps alone is complete too."""
        with self._news:
            self._begun = True
            self._ready.update(self._variable_index.values())
            self._news.notify_all()

    def wait(self, gate: GateKind) -> None:
        """Wait at a gate of the plan; raises what went wrong in the engine's thread."""
        edges = self._gates.get(gate, ())
        with self._news:
            self._wait_for(lambda: self._is_met(edges))

    def finish_step(self) -> None:
        """The user steps: with the options of this moment the engine does all that is left of the step."""
        with self._news:
            self._options = [{k: v for k, v in g.items() if k != "params"} for g in self._optimizer.param_groups]
            self._step_is_called = True
            self._news.notify_all()
            self._wait_for(lambda: len(self._done) == len(self._mine))
            self._ready.clear()
            self._done.clear()
            self._step_is_called = False
            self._begun = False
            self._num_steps += 1

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        if not self._news.wait_for(lambda: self._error is not None or condition(), self._timeout_seconds):
            raise OperationError(f"rank {self._rank}: {self._where()}: no end within {self._timeout_seconds:g} s")
        if self._error is not None:
            raise OperationError(f"rank {self._rank}: {self._where()} failed: {self._error}") from self._error

    def close(self) -> None:
        """End the thread. Whatever it is doing with other ranks comes to its end first, or to the timeout."""
        with self._news:
            self._closed = True
            self._news.notify_all()
        self._thread.join(self._timeout_seconds)
        if self._thread.is_alive():
            raise OperationError(f"rank {self._rank}: {self._where()}: no end within {self._timeout_seconds:g} s")

    def _is_met(self, edges: Sequence[Edge]) -> bool:
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
        parts = self._plan.messages[operation.message]
        more = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
        return f"{what} of {parts[0]}{more} (operation {index})"

    def _run(self) -> None:
        for step in itertools.count():
            self._await_step(step)
            if self._closed:
                return
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

    def _await_step(self, step: int) -> None:
        with self._news:
            self._news.wait_for(lambda: self._closed or (self._begun and self._num_steps == step))

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
