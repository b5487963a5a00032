"""Carries out local operations on one rank in one step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autosync.plan.reference.codecs import decode, encode, orthogonal
from autosync.plan.reference.optimizers import ReferenceOptimizer, State
from autosync.plan.reference.progress import Progress
from autosync.plan.reference.store import Store, TooEarlyError
from autosync.plan.reference.workload import Array
from autosync.plan.shards import own_shard
from autosync.plan.types import Local, Plan, StagePass
from autosync.strategy.codecs import Cast, PowerSGD, TopK
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer


class Worker:
    """Does local operations, and keeps optimizer states, residuals, velocities and right factors over steps."""

    def __init__(self, plan: Plan, store: Store, progress: Progress, optimizer: ReferenceOptimizer) -> None:
        self._plan = plan
        self._store = store
        self._progress = progress
        self._optimizer = optimizer
        self._states: dict[tuple[str, int, int], State] = {}
        self.residuals: dict[tuple[int, int], Array] = {}
        self._velocities: dict[tuple[int, int], Array] = {}
        self._rights: dict[tuple[int, int], Array] = {}
        self._momenta: dict[tuple[int, int], Array] = {}
        self._shown: dict[tuple[int, int, int], Any] = {}
        workers = tuple(range(plan.num_workers))
        self._updates = [
            operation
            for operation in plan.operations
            if isinstance(operation, Local)
            and operation.kind == "update"
            and not operation.sharded
            and (operation.groups == (workers,) or plan.stages)
        ]
        self._work: dict[str, Callable[[Local, int, int], None]] = {
            "average": self._average,
            "encode": self._encode,
            "project": self._project,
            "decode": self._decode,
            "merge_rows": self._merge_rows,
            "rebuild": self._rebuild,
            "norm": self._norm,
            "update": self._update,
            "copy": self._copy,
            "take": self._take,
            "read_rows": self._read_rows,
            "write_rows": self._write_rows,
            "outer": self._outer,
            "forward": self._pass,
            "backward": self._pass,
            "weights": self._pass,
        }

    def do(self, operation: Local, rank: int, step: int) -> None:
        """Do one operation."""
        self._work[operation.kind](operation, rank, step)

    def show_gradients(self, rank: int, step: int) -> None:
        """Note the gradients that the worker's own updates will use; users have seen them, so they must not change."""
        for operation in self._updates:
            if rank not in operation.groups[0]:
                continue
            if self._plan.regions[operation.inputs[0]].kind == "rows":
                self._shown[operation.message, rank, step] = self._store.content(operation.inputs[0], rank, step)
            else:
                self._shown[operation.message, rank, step] = self._store.joined(operation.inputs, rank, step)

    def _mine(self, operation: Local, rank: int, num_elements: int) -> slice:
        """Return the elements that the rank works on: all, or its shard."""
        return own_shard(operation, rank, num_elements)

    def _pass(self, operation: Local, rank: int, step: int) -> None:
        """Pass a microbatch through a stage: check what arrived, and leave a number that tells where it is from."""
        place = operation.settings
        assert isinstance(place, StagePass), "a pass has a stage and a microbatch"
        before = place.stage - 1 if operation.kind == "forward" else place.stage + 1
        for index in operation.inputs:
            arrived = self._store.dense(self._plan.regions[index], rank, step)
            if not np.all(arrived == _mark(operation.kind, before, place.microbatch, step)):
                raise TooEarlyError(
                    f"rank {rank} passes microbatch {place.microbatch} {operation.kind} in step {step} before "
                    f"{self._plan.regions[index]} is there"
                )
        for index in operation.outputs:
            mark = _mark(operation.kind, place.stage, place.microbatch, step)
            self._store.dense(self._plan.regions[index], rank, step)[...] = mark

    def _average(self, operation: Local, rank: int, step: int) -> None:
        values = self._store.joined(operation.inputs, rank, step)
        values[self._mine(operation, rank, len(values))] /= self._plan.num_workers
        self._store.spread(operation.outputs, rank, step, values)

    def _encode(self, operation: Local, rank: int, step: int) -> None:
        codec = operation.settings
        assert codec is not None, "encoding has a codec"
        assert not isinstance(codec, OuterOptimizer | StagePass), "encoding has a codec"
        for source, target in zip(operation.inputs, operation.outputs, strict=True):
            region = self._plan.regions[source]
            values = self._store.dense(region, rank, step).copy()
            residual = self._residual(source, rank, len(values))
            if isinstance(codec, TopK) and codec.momentum:
                velocity = self._velocities.setdefault((rank, source), np.zeros(len(values)))
                velocity[...] = codec.momentum * velocity + values
                values = velocity.copy()
            if codec.error_feedback:
                values += residual
            if isinstance(codec, PowerSGD):
                self._store.dense(region, rank, step)[...] = values
                left = self._matrix(region.part, values) @ self._right(region.part, rank, codec)
                self._store.dense(self._plan.regions[target], rank, step)[...] = left.reshape(-1)
                continue
            content = encode(codec, values)
            residual[...] = values - decode(codec, content, len(values))
            if isinstance(codec, TopK) and codec.momentum:
                # The velocity is cleared where it was sent.
                self._velocities[rank, source][content[0]] = 0
            if isinstance(codec, Cast):
                self._store.dense(self._plan.regions[target], rank, step)[...] = content
            else:
                self._store.put_content(target, rank, step, content)

    def _project(self, operation: Local, rank: int, step: int) -> None:
        for position in range(len(operation.inputs) // 2):
            grad = self._plan.regions[operation.inputs[position]]
            left = self._store.dense(self._plan.regions[operation.outputs[position]], rank, step)
            right = self._plan.regions[operation.outputs[len(operation.inputs) // 2 + position]]
            matrix = self._matrix(grad.part, self._store.dense(grad, rank, step))
            basis = orthogonal(left.reshape(matrix.shape[0], -1))
            left[...] = basis.reshape(-1)
            self._store.dense(right, rank, step)[...] = (matrix.T @ basis).reshape(-1)

    def _decode(self, operation: Local, rank: int, step: int) -> None:
        codec = operation.settings
        assert codec is not None, "decoding has a codec"
        assert not isinstance(codec, OuterOptimizer | StagePass), "decoding has a codec"
        if isinstance(codec, PowerSGD):
            self._decode_factors(operation, rank, step, codec)
        elif isinstance(codec, Cast):
            values = self._store.joined(operation.inputs, rank, step) / self._plan.num_workers
            mine = self._mine(operation, rank, len(values))
            result = np.full(len(values), np.nan)
            result[mine] = values[mine]
            self._store.spread(operation.outputs, rank, step, result)
        else:
            for source, target in zip(operation.inputs, operation.outputs, strict=True):
                out = self._store.dense(self._plan.regions[target], rank, step)
                contents = self._store.contents(source, rank, step)
                out[...] = sum(decode(codec, c, len(out)) for c in contents) / self._plan.num_workers

    def _decode_factors(self, operation: Local, rank: int, step: int, codec: PowerSGD) -> None:
        count = len(operation.outputs)
        for position, target in enumerate(operation.outputs):
            grad = self._store.dense(self._plan.regions[target], rank, step)
            basis = self._store.dense(self._plan.regions[operation.inputs[position]], rank, step)
            right = self._store.dense(self._plan.regions[operation.inputs[count + position]], rank, step)
            part = self._plan.regions[target].part
            rows = self._matrix(part, grad).shape[0]
            mean = right.reshape(-1, codec.rank) / self._plan.num_workers
            approximation = (basis.reshape(rows, codec.rank) @ mean.T).reshape(-1)
            self._residual(target, rank, len(grad))[...] = grad - approximation
            self._rights[rank, part] = mean
            grad[...] = approximation

    def _residual(self, region: int, rank: int, size: int) -> Array:
        return self.residuals.setdefault((rank, region), np.zeros(size))

    def _right(self, part: int, rank: int, codec: PowerSGD) -> Array:
        columns = self._matrix(part, np.empty(self._plan.parts[part].num_elements)).shape[1]
        start = np.random.default_rng(part).standard_normal((columns, codec.rank))
        return self._rights.setdefault((rank, part), start)

    def _matrix(self, part: int, values: Array) -> Array:
        return values.reshape(self._plan.parts[part].shape[0], -1)

    def _merge_rows(self, operation: Local, rank: int, step: int) -> None:
        (region,) = operation.inputs
        contributions = self._store.contents(region, rank, step)
        rows = np.concatenate([c[0] for c in contributions])
        values = np.concatenate([c[1] for c in contributions])
        unique, where = np.unique(rows, return_inverse=True)
        merged = np.zeros((len(unique), values.shape[1]))
        np.add.at(merged, where, values)
        self._store.put_content(operation.outputs[0], rank, step, (unique, merged / self._plan.num_workers))

    def _rebuild(self, operation: Local, rank: int, step: int) -> None:
        contributions = self._store.contents(operation.inputs[0], rank, step)
        total = sum(outputs.T @ inputs for outputs, inputs in contributions) / self._plan.num_workers
        self._store.spread(operation.outputs, rank, step, total.reshape(-1))

    def _norm(self, operation: Local, rank: int, step: int) -> None:
        values = self._store.joined(operation.inputs, rank, step)
        mine = values[self._mine(operation, rank, len(values))]
        self._store.dense(self._plan.regions[operation.outputs[0]], rank, step)[...] += np.sum(mine**2)

    def _coefficient(self, operation: Local, rank: int, step: int) -> float:
        """Return the factor of clipping, from the norm that the update waits for."""
        norm = self._norm_of(operation)
        if norm is None or self._plan.clip_norm is None:
            return 1.0
        return clip_coefficient(float(self._store.dense(self._plan.regions[norm], rank, step)[0]), self._plan.clip_norm)

    def _norm_of(self, operation: Local) -> int | None:
        for edge in operation.after:
            if edge.event == "operation":
                awaited = self._plan.operations[edge.target]
                region = awaited.outputs[0] if isinstance(awaited, Local) else awaited.regions[0]
                if self._plan.regions[region].kind == "norm":
                    return region
        return None

    def _update(self, operation: Local, rank: int, step: int) -> None:
        first = self._plan.regions[operation.inputs[0]]
        if first.kind == "rows":
            self._update_rows(operation, rank, step)
            return
        gradient = self._gradient(operation, rank, step)
        mine = self._mine(operation, rank, len(gradient))
        position = 0
        for index, size in self._joined_by_part(operation.outputs):
            start, stop = max(position, mine.start), min(position + size, mine.stop)
            if start < stop:
                region = self._plan.regions[index]._replace(stop=self._plan.regions[index].start + size)
                inner = slice(start - position, stop - position)
                value = self._store.dense(region, rank, step)[inner]
                state = self._state(region.kind, region.part, rank)
                slots = tuple(slot[region.start : region.stop][inner] for slot in state)
                self._optimizer.update(value, gradient[start:stop], (slots[0], slots[1]), step + 1)
            position += size

    def _gradient(self, operation: Local, rank: int, step: int) -> Array:
        """Return the clipped gradient; NaN if users saw another one, or if `step()` has not been called yet."""
        gradient = self._store.joined(operation.inputs, rank, step)
        shown = self._shown.get((operation.message, rank, step))
        if not self._progress.is_called(rank, step) or not (shown is None or np.array_equal(shown, gradient)):
            return np.full(len(gradient), np.nan)
        return gradient * self._coefficient(operation, rank, step)

    def _joined_by_part(self, regions: tuple[int, ...]) -> list[tuple[int, int]]:
        """Return regions with their sizes, joining adjacent regions, because an optimizer may need whole variables."""
        joined: list[tuple[int, int]] = []
        for index in regions:
            region = self._plan.regions[index]
            if joined:
                first, size = joined[-1]
                before = self._plan.regions[first]
                if (before.part, before.start + size) == (region.part, region.start):
                    joined[-1] = (first, size + region.num_elements)
                    continue
            joined.append((index, region.num_elements))
        return joined

    def _state(self, kind: str, part: int, rank: int) -> State:
        size = self._plan.parts[part].num_elements
        return self._states.setdefault((kind, part, rank), (np.zeros(size), np.zeros(size)))

    def _update_rows(self, operation: Local, rank: int, step: int) -> None:
        content = self._store.content(operation.inputs[0], rank, step)
        rows, gradient = content
        shown = self._shown.get((operation.message, rank, step), content)
        if not self._progress.is_called(rank, step) or shown is not content:
            gradient = np.full_like(gradient, np.nan)
        region = self._plan.regions[operation.outputs[0]]
        value = self._matrix(region.part, self._store.dense(region, rank, step))
        state = tuple(self._matrix(region.part, slot) for slot in self._state(region.kind, region.part, rank))
        slots = (state[0][rows], state[1][rows])
        new = value[rows]
        self._optimizer.update(new, gradient, slots, step + 1)
        value[rows], state[0][rows], state[1][rows] = new, slots[0], slots[1]

    def _copy(self, operation: Local, rank: int, step: int) -> None:
        values = self._store.joined(operation.inputs, rank, step)
        self._store.spread(operation.outputs, rank, step, values)

    def _take(self, operation: Local, rank: int, step: int) -> None:
        sent = _taken_from(operation, step)
        if sent >= 0:
            self._store.spread(operation.outputs, rank, step, self._store.joined(operation.inputs, rank, sent))

    def _read_rows(self, operation: Local, rank: int, step: int) -> None:
        rows, _ = self._store.content(operation.inputs[0], rank, step)
        region = self._plan.regions[operation.inputs[1]]
        value = self._matrix(region.part, self._store.dense(region, rank, step))
        self._store.put_content(operation.outputs[0], rank, step, (rows, value[rows]))

    def _write_rows(self, operation: Local, rank: int, step: int) -> None:
        sent = _taken_from(operation, step)
        if sent < 0:
            return
        rows, new = self._store.content(operation.inputs[0], rank, sent)
        region = self._plan.regions[operation.outputs[0]]
        self._matrix(region.part, self._store.dense(region, rank, step))[rows] = new

    def _outer(self, operation: Local, rank: int, step: int) -> None:
        settings: Any = operation.settings
        half = len(operation.inputs) // 2
        for param_index, anchor_index in zip(operation.inputs[:half], operation.inputs[half:], strict=True):
            param = self._store.dense(self._plan.regions[param_index], rank, step)
            anchor = self._store.dense(self._plan.regions[anchor_index], rank, step)
            momentum = self._momenta.setdefault((rank, param_index), np.zeros(len(param)))
            outer_step(param, anchor, momentum, settings)


def _mark(direction: str, stage: int, microbatch: int, step: int) -> float:
    """Return a number that no other pass leaves."""
    return float((((step + 1) * 2 + (direction == "forward")) * 64 + stage) * 65_536 + microbatch)


def _taken_from(operation: Local, step: int) -> int:
    """Return the step in which the data that an operation takes was sent."""
    return step - max((edge.lag for edge in operation.after if edge.event == "operation"), default=0)


def clip_coefficient(sum_of_squares: float, clip_norm: float) -> float:
    """Return the factor by which torch's `clip_grad_norm_` multiplies gradients."""
    return min(1.0, clip_norm / (float(np.sqrt(sum_of_squares)) + 1e-6))


def outer_step(param: Array, anchor: Array, momentum: Array, settings: OuterOptimizer) -> None:
    """Apply Nesterov's step to the change since the anchor; changes parameter, anchor and momentum in place."""
    change = anchor - param
    momentum[...] = settings.momentum * momentum + change
    param[...] = anchor - settings.learning_rate * (change + settings.momentum * momentum)
    anchor[...] = param
