"""The ranks' compute in the reference: using parameters, making gradients, and calling `step()`."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from autosync.plan.reference.progress import Progress
from autosync.plan.reference.stage_division import StageDivision
from autosync.plan.reference.store import Store
from autosync.plan.reference.work import Worker
from autosync.plan.reference.workload import Array, Gradient, Workload
from autosync.plan.types import Gate, Plan, Region
from autosync.specs.model import Variable
from autosync.strategy.parts import Part

P_ANY_ORDER = 0.5
"""The probability that, in a step, a rank uses variables and makes gradients in a random order.

Results must not depend on this order.
"""


class Compute:
    """Every worker's compute, as a sequence of moments; a moment with a gate waits for it."""

    def __init__(
        self,
        plan: Plan,
        workload: Workload,
        *,
        store: Store,
        progress: Progress,
        worker: Worker,
        num_steps: int,
        rng: random.Random,
    ) -> None:
        self._plan = plan
        self._workload = workload
        self._store = store
        self._progress = progress
        self._worker = worker
        self._num_steps = num_steps
        self._weights = plan.weights
        self._rng = rng
        self._variables = workload.model.variables
        self._division = StageDivision(plan, workload.model)
        self._step = [num_steps if rank.role == "server" else 0 for rank in plan.ranks]
        self._moments = [self._one_step(rank.index) for rank in plan.ranks]
        self._next = [next(moments) for moments in self._moments]
        self._in_use: dict[tuple[int, int], Array] = {}
        # What was in use in each step: without a flush, ranks compute with older parameters.
        self._used: dict[tuple[int, int], list[Array]] = defaultdict(list)
        self._gates: dict[tuple[str, int], Gate] = {(gate.kind, gate.variable): gate for gate in plan.gates}
        self._parts_of: dict[str, list[tuple[int, Part]]] = defaultdict(list)
        for index, part in enumerate(plan.parts):
            self._parts_of[part.variable.name].append((index, part))
        self._regions_of: dict[tuple[int, str], list[int]] = defaultdict(list)
        for index, region in enumerate(plan.regions):
            self._regions_of[region.part, region.kind].append(index)
        self._place_initial_parameters()

    def is_done(self, rank: int) -> bool:
        return self._step[rank] >= self._num_steps

    def step_of(self, rank: int) -> int:
        """Return the step that a rank is in (one past the last for a server and for a finished worker)."""
        return self._step[rank]

    def describe(self, rank: int) -> str:
        """Return in words where a rank is, for errors."""
        return f"rank {rank}: step {self._step[rank]}, before {self._next[rank]}"

    def advance(self, rank: int, num_moments: int) -> bool:
        """Go through at most `num_moments` moments of a rank; return whether it could go through any."""
        moved = False
        for _ in range(num_moments):
            if self.is_done(rank) or not self._gate_is_open(rank):
                break
            self._live(rank, *self._next[rank])
            moved = True
        return moved

    def parameters(self) -> list[dict[str, Array]]:
        """Return every worker's current parameters."""
        return [
            {variable.name: self._value(variable, rank.index) for variable in self._variables}
            for rank in self._plan.ranks
            if rank.role == "worker"
        ]

    def _one_step(self, rank: int) -> Iterator[tuple[str, int]]:
        held = [index for index, one in enumerate(self._variables) if self._division.holds(rank, one.name)]
        by_use = sorted(held, key=lambda index: (self._variables[index].use, index))
        by_ready = sorted(held, key=lambda index: self._variables[index].ready)
        if self._rng.random() < P_ANY_ORDER:
            self._rng.shuffle(by_use)
            self._rng.shuffle(by_ready)
        for variable in by_use:
            yield "before_use", variable
        for variable in by_ready:
            yield "gradient", variable
        yield "backward_returns", -1
        yield "step_called", -1
        yield "step_returns", -1

    def _gate_is_open(self, rank: int) -> bool:
        moment, index = self._next[rank]
        if moment == "gradient":
            passes = self._division.last_passes(rank, self._variables[index].name)
            return self._progress.may(passes, rank, self._step[rank])
        gate = self._gates.get(self._next[rank])
        return gate is None or self._progress.may(gate.after, rank, self._step[rank])

    def _live(self, rank: int, moment: str, index: int) -> None:
        if moment == "before_use":
            self._use(rank, index)
        elif moment == "gradient":
            self._make_gradient(rank, index)
        elif moment == "step_called":
            self._look(rank)
            self._progress.step_called(rank)
        if moment == "step_returns":
            self._step[rank] += 1
            self._moments[rank] = self._one_step(rank)
        self._next[rank] = next(self._moments[rank])

    def _use(self, rank: int, index: int) -> None:
        key = (rank, index)
        self._in_use[key] = self._value(self._variables[index], rank)
        if not self._plan.flushes:
            self._used[key].append(self._in_use[key])

    def _look(self, rank: int) -> None:
        """Look at parameters, and with backward overlap at gradients, as a user may between backward and `step()`.

        A parameter that changed since its use was changed too early. It becomes NaN, so that the result is wrong.
        """
        if self._plan.overlap == "backward":
            self._worker.show_gradients(rank, self._step[rank])
        for index, variable in enumerate(self._variables):
            if not self._division.holds(rank, variable.name):
                continue
            if not np.array_equal(self._in_use[rank, index], self._value(variable, rank), equal_nan=True):
                for part, _ in self._parts_of[variable.name]:
                    self._dense("param", part, rank, -1)[...] = np.nan

    def _make_gradient(self, rank: int, index: int) -> None:
        variable, step = self._variables[index], self._step[rank]
        value = self._in_use[rank, index]
        if self._plan.stages:
            values = self._used[rank, index] or [value]
            gradient = self._division.gradient(self._workload, variable, rank, step, values)
        else:
            gradient = self._workload.gradient(variable, rank, step, value).scaled(self._weights[rank])
        for part_index, part in self._parts_of[variable.name]:
            flat = _cut(part, gradient.dense).reshape(-1)
            self._dense("grad", part_index, rank, step)[...] = flat
            for region in self._regions_of[part_index, "rows"]:
                self._store.put_content(region, rank, step, _rows_of(part, gradient))
            for region in self._regions_of[part_index, "factors"]:
                self._store.put_content(region, rank, step, _factors_of(part, gradient))
        self._progress.gradient_ready(index, rank, step)

    def _place_initial_parameters(self) -> None:
        for rank in self._plan.ranks:
            for variable in self._variables:
                value = self._workload.initial(variable)
                for index, part in self._parts_of[variable.name]:
                    for kind in ("param", "master", "anchor"):
                        self._dense(kind, index, rank.index, -1)[...] = _cut(part, value).reshape(-1)

    def _value(self, variable: Variable, rank: int) -> Array:
        pieces = [
            self._dense("param", index, rank, -1).reshape(part.shape) for index, part in self._parts_of[variable.name]
        ]
        axis = self._parts_of[variable.name][0][1].axis
        return np.concatenate(pieces, axis=axis) if len(pieces) > 1 else pieces[0].copy()

    def _dense(self, kind: str, part: int, rank: int, step: int) -> Array:
        region = Region(kind, part, 0, self._plan.parts[part].num_elements, "")  # type: ignore[arg-type]
        return self._store.dense(region, rank, step)


def _cut(part: Part, value: Array) -> Array:
    if not value.shape:
        return value
    return np.take(value, np.arange(part.begin, part.end), axis=part.axis)


def _rows_of(part: Part, gradient: Gradient) -> tuple[np.ndarray, Array]:
    """Return the part's touched rows: their positions within the part, and their values."""
    assert gradient.rows is not None, "embeddings have rows"
    rows = gradient.rows
    if part.axis == 0:
        rows = rows[(rows >= part.begin) & (rows < part.end)]
        return rows - part.begin, gradient.dense[rows]
    return rows, gradient.dense[rows][:, part.begin : part.end]


def _factors_of(part: Part, gradient: Gradient) -> tuple[Array, Array]:
    """Return the factors of the part's gradient."""
    assert gradient.factors is not None, "linear variables have factors"
    outputs, inputs = gradient.factors
    if part.axis == 0:
        return outputs[:, part.begin : part.end], inputs
    return outputs, inputs[:, part.begin : part.end]
