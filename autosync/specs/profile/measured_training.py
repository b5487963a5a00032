"""A task that trains on a device, step after step, while its passes are recorded and timed."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autosync.specs import task_run
from autosync.specs.batch_times import BatchTime
from autosync.specs.model import ModelSpec
from autosync.specs.profile.assemble import ProfiledStep, ProfileRecords
from autosync.specs.profile.batch_sizes import NUM_ROUNDS, time_sizes
from autosync.specs.profile.clock import clock_of
from autosync.specs.profile.find_cuts import FoundCuts, cuts_of_task, with_checked_losses
from autosync.specs.profile.machine_load import UNKNOWN, LoadWatch, MachineLoad
from autosync.specs.profile.optimizer import optimizer_notes, optimizer_spec
from autosync.specs.profile.profiled_steps import (
    UPDATE_NOTE,
    known_rows,
    materialise,
    profiled_step,
    sparse_gradients,
    task_notes,
)
from autosync.specs.profile.recorder import MicrostepRecorder, structure_of
from autosync.specs.profile.split_products import split_layers
from autosync.specs.profile.steadiness import LEAST_STEPS, StoppingRule
from autosync.specs.profile.use_draws import UseDraws
from autosync.specs.profile.whole_passes import PassSeconds, fitted, time_passes
from autosync.specs.split_layers import SplitLayers
from autosync.specs.task import Task

NUM_FACTS = 5
"""The number of steps from which facts other than times come, even if more steps are measured."""
WARM_UP_STEPS = 2
TOLD_STEPS = 20
"""Once there are enough steps for an interval, only every twentieth step is reported as progress."""


class MeasuredTraining:
    """A task that trains on a device, on random batches."""

    def __init__(self, task: Task, device: torch.device, seed: int) -> None:
        self._task = task
        self._device = device
        self._seed = seed
        self._generator = torch.Generator().manual_seed(seed)
        self._clock = clock_of(device)
        self._model = task_run.build_model(task).to(device)
        materialise(task, self._model, self._generator, lambda tensor: tensor.to(device))
        self._structure = structure_of(self._model)
        trained = [p for p in self._model.parameters() if p.requires_grad]
        self._optimizer = task_run.build_optimizer(task, trained)
        self._recorder = MicrostepRecorder(structure=self._structure, clock=self._clock)
        self._sparse: frozenset[str] = frozenset()

    def records(self, steps: int | None, tell: Callable[[str], None]) -> ProfileRecords:
        """Measure steps, exactly `steps` of them or until their time is steady, and return what was recorded."""
        with self._recorder.attached():
            facts, done, load = _paced(self._recorded_step, steps, tell)
        if self._device.type == "cuda":
            tell("whole passes")
            done = fitted(done, self._whole_passes())
        num_facts = steps or NUM_FACTS
        spec = optimizer_spec(self._optimizer)
        return ProfileRecords(
            structure=self._structure,
            facts=facts,
            steps=tuple(done[:num_facts]),
            later=tuple(done[num_facts:]),
            sparse=self._sparse,
            optimizer=spec,
            device=device_name(self._device),
            source="measured",
            note=f"medians over {len(done)} steps after {WARM_UP_STEPS} of warm-up; {UPDATE_NOTE}",
            notes=(*task_notes(self._task, self._sparse), *optimizer_notes(self._optimizer, spec)),
            # Processor time says nothing about the load of a GPU.
            load=load if self._device.type == "cpu" else UNKNOWN,
        )

    def use_draws(self) -> UseDraws:
        """Return how ranks are played."""
        return UseDraws(
            task=self._task,
            seed=self._seed,
            build=lambda: task_run.build_model(self._task).to(self._device),
            place=lambda batch: task_run.move(batch, self._device),
            around=contextlib.nullcontext,
        )

    def times_of_sizes(self, sizes: Sequence[int], num_rounds: int = NUM_ROUNDS) -> tuple[BatchTime, ...]:
        """Time the passes with batches of several sizes."""
        return time_sizes(
            self._task,
            self._model,
            sizes,
            draw=lambda: task_run.draw_batch(self._task, self._generator),
            place=lambda tensor: tensor.to(self._device),
            clock=self._clock,
            num_rounds=num_rounds,
        )

    def cuts(self) -> FoundCuts:
        """Find where the model can be cut."""
        batch = self._batch()
        found = cuts_of_task(self._task, self._structure, self._model, batch)
        return with_checked_losses(found, self._task, self._model, batch, self._batch)

    def split_layers(self, found: FoundCuts, spec: ModelSpec) -> tuple[SplitLayers, ...]:
        """Time the gradients of weights that backward passes can leave for later."""
        return split_layers(found.linears, spec, self._device, self._clock)

    def _recorded_step(self, number: int) -> ProfiledStep:
        """Take a step under the recorder, whose hooks are in the model. Step 0 also asks for the order of uses."""
        self._recorder.asks_sequence = number == 0
        self._optimizer.zero_grad(set_to_none=True)
        microsteps = [
            self._recorder.microstep(self._task, self._model, self._batch())
            for _ in range(self._task.accumulation_steps)
        ]
        self._sparse = sparse_gradients(self._structure)
        start = self._clock.mark()
        self._update()
        update_seconds = self._clock.seconds([start, self._clock.mark()])[0]
        return profiled_step(microsteps, update_seconds, known_rows)

    def _whole_passes(self) -> PassSeconds:
        """Time the passes without the recorder."""
        batches = [self._batch() for _ in range(self._task.accumulation_steps)]
        return time_passes(lambda mark: self._step_between(mark, batches), self._clock)

    def _step_between(self, mark: Callable[[], None], batches: Sequence[Any]) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        for batch in batches:
            mark()
            loss = task_run.compute_loss(self._task, self._model, batch)
            mark()
            task_run.run_backward(self._task, loss)
            mark()
        self._update()
        mark()

    def _batch(self) -> Any:
        return task_run.move(task_run.draw_batch(self._task, self._generator), self._device)

    def _update(self) -> None:
        if self._task.clip_norm is not None and not self._sparse:
            nn.utils.clip_grad_norm_(self._model.parameters(), self._task.clip_norm)
        # An optimizer that needs a closure gets a constant loss: the passes are not part of the update's time.
        task_run.step_optimizer(self._task, self._optimizer, lambda: torch.zeros(()))


def _paced(
    step: Callable[[int], ProfiledStep], steps: int | None, tell: Callable[[str], None]
) -> tuple[ProfiledStep, list[ProfiledStep], MachineLoad]:
    """Run the steps; return the first step, the measured steps after warm-up, and the load during the latter."""
    pace, done, taken = StoppingRule(num_steps=steps), list[ProfiledStep](), list[float]()
    for number in range(WARM_UP_STEPS):
        tell(f"step {number + 1} (warm-up)")
        done.append(step(number))
    watch, began = LoadWatch(), time.monotonic()
    while pace.goes_on(taken, time.monotonic() - began):
        number = len(done) + 1
        if steps is not None:
            tell(f"step {number} of {WARM_UP_STEPS + steps}")
        elif number <= WARM_UP_STEPS + LEAST_STEPS or number % TOLD_STEPS == 0:
            tell(f"step {number}")
        done.append(step(len(done)))
        taken.append(done[-1].seconds)
    return done[0], done[WARM_UP_STEPS:], watch.load()


def device_name(device: torch.device) -> str:
    """Return the name of a device for a timeline."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {torch.get_num_threads()} threads"
