"""Profiling: runs a task's real model and records everything that synchronisation depends on.

`profile` runs a few steps on a device and measures them, or runs them without a device and computes the times from
operation counts and the rates of a named device. Variables, kinds and orders are the same either way. docs/task.md says
where each figure comes from.
"""

from __future__ import annotations

import gc
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from autosync.errors import InputError, OperationError, TaskError
from autosync.specs import task_run
from autosync.specs.batch_times import BatchTime
from autosync.specs.model import ModelSpec, OptimizerSpec
from autosync.specs.profile.assemble import ProfiledStep, ProfileRecords, assemble
from autosync.specs.profile.batch_sizes import NUM_ROUNDS, check_sizes, time_sizes, with_microbatches
from autosync.specs.profile.clock import clock_of
from autosync.specs.profile.computed_clock import META, ComputedClock
from autosync.specs.profile.device_rates import DEFAULT_RATE, DeviceRate, device_rate
from autosync.specs.profile.find_cuts import FoundCuts, find_cuts, half_batch, why_no_microbatches
from autosync.specs.profile.graph import ParameterUses, distinct_rows
from autosync.specs.profile.machine_load import UNKNOWN, LoadWatch, MachineLoad
from autosync.specs.profile.optimizer import optimizer_notes, optimizer_spec, probe_optimizer
from autosync.specs.profile.recorder import Microstep, MicrostepRecorder, ModelStructure, structure_of
from autosync.specs.profile.steadiness import LEAST_STEPS, StoppingRule
from autosync.specs.profile.whole_passes import PassSeconds, fitted, time_passes
from autosync.specs.task import Task

NUM_FACTS = 5
"""The number of steps from which facts other than times come, even if more steps are measured."""
WARM_UP_STEPS = 2
TOLD_STEPS = 20
"""Once there are enough steps for an interval, only every twentieth step is reported as progress."""

Progress = Callable[[str], None]


def profile(
    task: Task,
    *,
    device: str = "cpu",
    steps: int | None = None,
    times: Literal["measured", "computed"] = "measured",
    rate: DeviceRate | str = DEFAULT_RATE,
    seed: int = 0,
    batch_sizes: Sequence[int] = (),
    cuts: bool = False,
    progress: Progress | None = None,
) -> ModelSpec:
    """Profile a task and return its model spec. `rate` is the device of computed times.

    Exactly `steps` steps are measured after warm-up; without `steps`, as many as are needed until the time of a step is
    steady, within limits. The spec says how steady it is and whether the machine was busy (`Timeline.profiled`).
    `batch_sizes` are other numbers of examples whose passes are timed too, for shares of the batch (`Timeline.sizes`).
    With `cuts`, the spec says where the model can be cut into stages (`Timeline.cuts`), and without `batch_sizes`, the
    passes of some microbatches are timed.
    """
    if batch_sizes:
        check_sizes(task, batch_sizes)
    if times == "computed" and (batch_sizes or cuts):
        raise InputError("batch sizes or cuts with computed times", rule="both come from passes on a device")
    if steps is not None and steps < 1:
        raise InputError(f"{steps} steps measure nothing", rule="steps is 1 or more")
    tell = progress or (lambda _: None)
    # The user's program may continue after this: its random numbers must not change.
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        if times == "measured":
            place = _device(device)
            training = _Training(task, place, seed)
            spec = _assembled(task, _measure(task, training, place, steps, tell))
            if batch_sizes:
                tell(f"batches of {', '.join(map(str, sorted(set(batch_sizes))))} examples")
                spec = replace(spec, timeline=replace(spec.timeline, sizes=training.times_of_sizes(batch_sizes)))
            if cuts:
                tell("cuts")
                found = training.cuts()
                spec = replace(spec, timeline=replace(spec.timeline, cuts=found.cuts, uncut=found.uncut))
            if cuts and spec.timeline.cuts and not spec.timeline.sizes:
                tell("microbatches")
                spec = replace(spec, timeline=with_microbatches(spec, training.times_of_sizes))
            del training
            if place.type == "cuda":
                # The ranks of a tuning on this machine need the memory that torch keeps for later.
                gc.collect()
                torch.cuda.empty_cache()
            return spec
        try:
            return _assembled(task, _compute(task, _rate(rate), steps or NUM_FACTS, seed, tell))
        except TaskError as error:
            raise _with_advice(error) from error.__cause__


def _assembled(task: Task, records: ProfileRecords) -> ModelSpec:
    spec = assemble(task, records)
    return spec if task.weight is None else replace(spec, weighs=True)


def _with_advice(error: TaskError) -> TaskError:
    """Add a hint to errors of code that needs the values of tensors: tensors on `meta` have none."""
    advice = "computed times run the model on tensors without values; measured ones run it on a device"
    return TaskError(replace(p, hint=advice) if "meta" in p.what and not p.hint else p for p in error.problems)


def _rate(rate: DeviceRate | str) -> DeviceRate:
    return rate if isinstance(rate, DeviceRate) else device_rate(rate)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"{name!r} is no device", rule="known: cpu, cuda, cuda:0 …") from error
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"{name!r} cannot be measured", rule="known: cpu, cuda, cuda:0 …")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise OperationError("torch finds no CUDA device here; profile with --device cpu, or --times computed")
        if (device.index or 0) >= torch.cuda.device_count():
            raise OperationError(f"there is no device {name}: torch finds {torch.cuda.device_count()}")
    return device


def _measure(
    task: Task, training: _Training, device: torch.device, steps: int | None, tell: Progress
) -> ProfileRecords:
    with training.recorder.attached():
        facts, done, load = _paced(training.recorded_step, steps, tell)
    if device.type == "cuda":
        tell("whole passes")
        done = fitted(done, training.whole_passes())
    num_facts = steps or NUM_FACTS
    spec = optimizer_spec(training.optimizer)
    return ProfileRecords(
        structure=training.structure,
        facts=facts,
        steps=tuple(done[:num_facts]),
        later=tuple(done[num_facts:]),
        sparse=training.sparse,
        optimizer=spec,
        device=device_name(device),
        source="measured",
        note=f"medians over {len(done)} steps after {WARM_UP_STEPS} of warm-up; {_UPDATE_NOTE}",
        notes=(*_notes(task, training.sparse), *optimizer_notes(training.optimizer, spec)),
        # Processor time says nothing about the load of a GPU.
        load=load if device.type == "cpu" else UNKNOWN,
    )


class _Training:
    """A task that trains on a device, on random batches. `sparse` names the variables with sparse gradients."""

    def __init__(self, task: Task, device: torch.device, seed: int) -> None:
        self._task = task
        self._device = device
        self._generator = torch.Generator().manual_seed(seed)
        self._clock = clock_of(device)
        self._model = task_run.build_model(task).to(device)
        _materialise(task, self._model, device, self._generator)
        self.structure = structure_of(self._model)
        trained = [p for p in self._model.parameters() if p.requires_grad]
        self.optimizer = task_run.build_optimizer(task, trained)
        self.recorder = MicrostepRecorder(structure=self.structure, clock=self._clock)
        self.sparse: frozenset[str] = frozenset()

    def recorded_step(self, number: int) -> ProfiledStep:
        """Take a step under the recorder, whose hooks are in the model. Step 0 also asks for the order of uses."""
        self.recorder.asks_sequence = number == 0
        self.optimizer.zero_grad(set_to_none=True)
        microsteps = [
            self.recorder.microstep(self._task, self._model, self._batch())
            for _ in range(self._task.accumulation_steps)
        ]
        self.sparse = _sparse_gradients(self.structure)
        start = self._clock.mark()
        self._update()
        update_seconds = self._clock.seconds([start, self._clock.mark()])[0]
        return profiled_step(microsteps, update_seconds, known_rows)

    def whole_passes(self) -> PassSeconds:
        """Time the passes without the recorder."""
        batches = [self._batch() for _ in range(self._task.accumulation_steps)]
        return time_passes(lambda mark: self._step_between(mark, batches), self._clock)

    def times_of_sizes(self, sizes: Sequence[int], num_rounds: int = NUM_ROUNDS) -> tuple[BatchTime, ...]:
        """Time the passes with batches of several sizes."""
        how: dict[str, Any] = {"generator": self._generator, "device": self._device, "clock": self._clock}
        return time_sizes(self._task, self._model, sizes, num_rounds=num_rounds, **how)

    def cuts(self) -> FoundCuts:
        """Find where the model can be cut."""
        batch = self._batch()
        reason = why_no_microbatches(self._task, batch)
        if reason:
            return FoundCuts(uncut=reason)
        return find_cuts(
            self.structure,
            self._model,
            lambda: task_run.compute_loss(self._task, self._model, batch),
            batch,
            smaller=half_batch(self._task, self._model, batch),
        )

    def _step_between(self, mark: Callable[[], None], batches: Sequence[Any]) -> None:
        self.optimizer.zero_grad(set_to_none=True)
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
        if self._task.clip_norm is not None and not self.sparse:
            nn.utils.clip_grad_norm_(self._model.parameters(), self._task.clip_norm)
        # An optimizer that needs a closure gets a constant loss: the passes are not part of the update's time.
        task_run.step_optimizer(self._task, self.optimizer, lambda: torch.zeros(()))


def _paced(
    step: Callable[[int], ProfiledStep], steps: int | None, tell: Progress
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


def _compute(task: Task, rate: DeviceRate, steps: int, seed: int, tell: Progress) -> ProfileRecords:
    clock = ComputedClock(rate)
    generator = torch.Generator().manual_seed(seed)
    model = _build_without_values(task, clock)
    structure = structure_of(model)
    recorder = MicrostepRecorder(structure=structure, clock=clock)
    unknown: set[str] = set()

    def rows(uses: ParameterUses, name: str) -> torch.Tensor | int:
        known = [(clock.values(ids), padding) for ids, padding in uses.ids]
        if all(values is not None for values, _ in known):
            return distinct_rows(tuple((values, padding) for values, padding in known if values is not None))
        unknown.add(name)
        return min(sum(ids.numel() for ids, _ in uses.ids), structure.parameters[name].shape[0])

    done = []
    with recorder.attached():
        # One step for the order of uses, then steps for touched rows. Computed times are the same in all steps.
        for number in range(1 + steps):
            tell(f"step {number + 1} of {1 + steps} (computed)")
            recorder.asks_sequence = number == 0
            model.zero_grad(set_to_none=True)
            microsteps = []
            for _ in range(task.accumulation_steps):
                batch = task_run.map_tensors(task_run.draw_batch(task, generator), clock.to_meta)
                with clock:
                    microsteps.append(recorder.microstep(task, model, batch))
            done.append(profiled_step(microsteps, 0.0, rows))
    sparse = _sparse_gradients(structure)
    optimizer = probe_optimizer(task, sparse=bool(sparse))
    update_seconds = rate.seconds(0, _update_bytes(task, structure, optimizer, done[-1], sparse))
    bounds = (
        f"the ids of {name} depend on values that only a run knows: touched rows are the most there can be"
        for name in sorted(unknown)
    )
    return ProfileRecords(
        structure=structure,
        facts=done[0],
        steps=tuple(replace(step, update_seconds=update_seconds) for step in done[1:]),
        sparse=sparse,
        optimizer=optimizer,
        device=rate.name,
        source="computed",
        note=f"{rate.describe()}; {_UPDATE_NOTE}",
        notes=(*_notes(task, sparse), *bounds),
    )


def _build_without_values(task: Task, clock: ComputedClock) -> nn.Module:
    """Build the model without values, because it may exceed this machine's memory.

    It is built with values only if its construction needs some; they are dropped afterwards.
    """
    try:
        with torch.device(META), clock:
            model = task_run.build_model(task)
    except TaskError:
        model = task_run.build_model(task)
    clock.strip(model)
    return model


_UPDATE_NOTE = "the update as a whole, split over modules by the elements that it changes"


def profiled_step(
    microsteps: list[Microstep], update_seconds: float, rows_of: Callable[[ParameterUses, str], torch.Tensor | int]
) -> ProfiledStep:
    """Return a step with the number of distinct rows that its microsteps touched together.

    Only variables that are used by embeddings alone have such a number.
    """
    touched: dict[str, int] = {}
    for name in {name for microstep in microsteps for name in microstep.uses}:
        uses = [microstep.uses[name] for microstep in microsteps if name in microstep.uses]
        if all(use.is_embedding for use in uses):
            found = [rows_of(use, name) for use in uses]
            known = [rows for rows in found if isinstance(rows, torch.Tensor)]
            bound = sum(rows for rows in found if isinstance(rows, int))
            touched[name] = bound + (int(torch.unique(torch.cat(known)).numel()) if known else 0)
    # Drop the ids, which would keep the tensors of every step alive.
    light = [_without_ids(microstep) for microstep in microsteps]
    return ProfiledStep(microsteps=tuple(light), update_seconds=update_seconds, touched_rows=touched)


def _without_ids(microstep: Microstep) -> Microstep:
    return replace(microstep, uses={name: replace(uses, ids=()) for name, uses in microstep.uses.items()})


def known_rows(uses: ParameterUses, _: str) -> torch.Tensor:
    """Return the distinct rows that embeddings looked up, from the values of their ids."""
    return distinct_rows(uses.ids)


def _materialise(task: Task, model: nn.Module, device: torch.device, generator: torch.Generator) -> None:
    """Run a first batch if the model has lazy modules, which learn their shapes from it."""
    if any(isinstance(parameter, nn.UninitializedParameter) for parameter in model.parameters()):
        task_run.compute_loss(task, model, task_run.move(task_run.draw_batch(task, generator), device))


def _sparse_gradients(structure: ModelStructure) -> frozenset[str]:
    gradients = ((name, parameter.grad) for name, parameter in structure.parameters.items())
    return frozenset(name for name, gradient in gradients if gradient is not None and gradient.is_sparse)


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


def _notes(task: Task, sparse: frozenset[str]) -> tuple[str, ...]:
    notes = []
    if task.clip_norm is not None:
        within = "not in the times: sparse gradients cannot be clipped" if sparse else "counted with the update"
        notes.append(f"the gradient is clipped to norm {task.clip_norm:g} ({within})")
    if task.loss_scaling:
        notes.append("the loss is scaled in training and not in the profile")
    return tuple(notes)


def device_name(device: torch.device) -> str:
    """Return the name of a device for a timeline."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {torch.get_num_threads()} threads"
