"""A task that trains without its device: passes run on tensors without values, and their times are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from autosync import units
from autosync.errors import TaskError
from autosync.specs import task_run
from autosync.specs.batch_times import BatchTime
from autosync.specs.free_memory import free_bytes
from autosync.specs.model import ModelSpec, OptimizerSpec
from autosync.specs.profile.assemble import ProfiledStep, ProfileRecords
from autosync.specs.profile.batch_sizes import time_sizes
from autosync.specs.profile.computed_clock import META, ComputedClock
from autosync.specs.profile.device_rates import OperationRate
from autosync.specs.profile.find_cuts import FoundCuts, cuts_of_task, with_checked_losses
from autosync.specs.profile.graph import ParameterUses, distinct_rows
from autosync.specs.profile.known_devices import TrainingRate
from autosync.specs.profile.optimizer import probe_optimizer
from autosync.specs.profile.profiled_steps import (
    UPDATE_NOTE,
    materialise,
    profiled_step,
    sparse_gradients,
    task_notes,
)
from autosync.specs.profile.recorder import MicrostepRecorder, ModelStructure, structure_of
from autosync.specs.profile.split_products import split_layers
from autosync.specs.profile.use_draws import UseDraws
from autosync.specs.split_layers import SplitLayers
from autosync.specs.task import Task

NUM_STEPS = 5
"""Times are the same in all steps; touched rows are not."""
LAUNCH_SECONDS = 50e-6
"""What the host of an H200 needed for each operation of a small batch: 32 to 73 µs, in 20 of 22 networks
(benchmarks/device_rates)."""
_SHARE_OF_MEMORY = 0.25
"""The share of the free memory that the parameters of a model may take whose losses and gradients are compared here."""


class ComputedTraining:
    """A task that trains on `meta`, on random batches of which only integers have values."""

    def __init__(self, task: Task, rate: OperationRate, seed: int) -> None:
        self._task = task
        self._rate = rate
        self._seed = seed
        self._generator = torch.Generator().manual_seed(seed)
        self._clock = ComputedClock(rate)
        self._model = self._build()
        self._structure = structure_of(self._model)
        # Embeddings whose ids depend on values that only a run knows.
        self._unknown: set[str] = set()

    def records(self, steps: int | None, tell: Callable[[str], None]) -> ProfileRecords:
        """Take a step for the order of uses, and `steps` further ones for touched rows; return what was recorded."""
        num_steps = steps or NUM_STEPS
        recorder = MicrostepRecorder(structure=self._structure, clock=self._clock)
        done = []
        start, num_before = self._clock.mark(), self._clock.num_operations
        with recorder.attached():
            for number in range(1 + num_steps):
                tell(f"step {number + 1} of {1 + num_steps} (computed)")
                recorder.asks_sequence = number == 0
                done.append(self._recorded_step(recorder))
        num_operations = (self._clock.num_operations - num_before) // len(done)
        launches = _launches(self._rate, num_operations, (self._clock.mark() - start) / len(done))
        sparse = sparse_gradients(self._structure)
        optimizer = probe_optimizer(self._task, sparse=bool(sparse))
        update_bytes = _update_bytes(self._task, self._structure, optimizer, done[-1], sparse)
        update_seconds = self._rate.seconds("memory", 0, update_bytes)
        bounds = (
            f"the ids of {name} depend on values that only a run knows: touched rows are the most there can be"
            for name in sorted(self._unknown)
        )
        return ProfileRecords(
            structure=self._structure,
            facts=done[0],
            steps=tuple(replace(step, update_seconds=update_seconds) for step in done[1:]),
            sparse=sparse,
            optimizer=optimizer,
            device=self._rate.name,
            source="computed",
            note=f"{self._rate.describe()}; {UPDATE_NOTE}",
            notes=(*task_notes(self._task, sparse), *bounds, *launches),
        )

    def use_draws(self) -> UseDraws:
        """Return how ranks are played."""
        return UseDraws(
            task=self._task,
            seed=self._seed,
            build=self._build,
            place=lambda batch: task_run.map_tensors(batch, self._clock.to_meta),
            around=lambda: self._clock,
        )

    def times_of_sizes(self, sizes: Sequence[int], num_rounds: int = 1) -> tuple[BatchTime, ...]:  # noqa: ARG002 - computed times are the same in all rounds
        """Compute the times of passes with batches of several sizes."""
        with self._clock:
            return time_sizes(
                self._task,
                self._model,
                sizes,
                draw=self._batch_with_values,
                place=self._clock.to_meta,
                clock=self._clock,
                num_rounds=1,
                warm_up_rounds=0,
            )

    def cuts(self) -> FoundCuts:
        """Find where the model can be cut. A pass with values, on this machine's processor, compares its losses."""
        batch = self._batch_with_values()
        placed = task_run.map_tensors(batch, self._clock.to_meta)
        with self._clock:
            found = cuts_of_task(self._task, self._structure, self._model, placed)
        if not found.cuts or found.mixes:
            return found
        num_bytes = sum(one.numel() * one.element_size() for one in self._model.parameters())
        available = free_bytes()
        if available is not None and num_bytes > _SHARE_OF_MEMORY * available:
            size = units.format_size(num_bytes)
            unchecked = (
                f"whether microbatches train the same model was not checked: {size} of parameters are too many for "
                "this machine's memory"
            )
            return found._replace(note="; ".join(filter(None, (found.note, unchecked))))
        return with_checked_losses(found, self._task, task_run.build_model(self._task), batch, self._batch_with_values)

    def split_layers(self, found: FoundCuts, spec: ModelSpec) -> tuple[SplitLayers, ...]:
        """Compute the times of gradients of weights from their operation counts."""
        with self._clock:
            return split_layers(found.linears, spec, META, self._clock, num_rounds=1, warm_up_rounds=0)

    def _build(self) -> nn.Module:
        return _build_without_values(self._task, self._clock, torch.Generator().manual_seed(self._seed))

    def _recorded_step(self, recorder: MicrostepRecorder) -> ProfiledStep:
        self._model.zero_grad(set_to_none=True)
        microsteps = []
        for _ in range(self._task.accumulation_steps):
            batch = task_run.map_tensors(self._batch_with_values(), self._clock.to_meta)
            with self._clock:
                microsteps.append(recorder.microstep(self._task, self._model, batch))
        return profiled_step(microsteps, 0.0, self._rows)

    def _rows(self, uses: ParameterUses, name: str) -> torch.Tensor | int:
        known = [(self._clock.values(ids), padding) for ids, padding in uses.ids]
        if all(values is not None for values, _ in known):
            return distinct_rows(tuple((values, padding) for values, padding in known if values is not None))
        self._unknown.add(name)
        return min(sum(ids.numel() for ids, _ in uses.ids), self._structure.parameters[name].shape[0])

    def _batch_with_values(self) -> Any:
        return task_run.draw_batch(self._task, self._generator)


def _launches(rate: OperationRate, num_operations: int, seconds: float) -> Iterator[str]:
    """Yield a note if a known device's passes may take as long as its host needs to launch their operations."""
    launching = num_operations * LAUNCH_SECONDS
    if isinstance(rate, TrainingRate) and seconds < launching:
        yield (
            f"{num_operations:,} operations may take longer than the {1e3 * seconds:.3g} ms computed for them: "
            f"launches are not counted, and the host of an H200 needed about {1e6 * LAUNCH_SECONDS:.0f} µs for each "
            f"({1e3 * launching:.3g} ms in all)"
        )


def _build_without_values(task: Task, clock: ComputedClock, generator: torch.Generator) -> nn.Module:
    """Build the model without values, because it may exceed this machine's memory.

    It is built with values only if its construction needs some; they are dropped afterwards. Lazy modules learn their
    shapes from a batch of the generator.
    """
    try:
        with torch.device(META), clock:
            model = task_run.build_model(task)
    except TaskError:
        model = task_run.build_model(task)
        materialise(task, model, generator, lambda tensor: tensor)
    clock.strip(model)
    with clock:
        materialise(task, model, generator, clock.to_meta)
    return model


def _update_bytes(
    task: Task, structure: ModelStructure, optimizer: OptimizerSpec, step: ProfiledStep, sparse: frozenset[str]
) -> float:
    """Return the bytes of an update: gradients are read, parameters and state are read and written.

    Clipping adds three passes over the gradients.
    """
    passes = 3 + 2 * optimizer.state_slots + (3 if task.clip_norm is not None else 0)
    total = 0.0
    for name, parameter in structure.parameters.items():
        if parameter.grad is not None:
            # The touched rows of a sparse gradient that is no embedding's are unknown: count the whole parameter.
            is_counted = name in sparse and name in step.touched_rows
            share = min(1.0, step.touched_rows[name] / parameter.shape[0]) if is_counted else 1.0
            total += share * parameter.numel() * parameter.element_size() * passes
    return total
