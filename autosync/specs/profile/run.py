"""Profiling: runs a task's real model and records everything that synchronisation depends on.

`profile` runs a few steps on a device and measures them, or runs them without a device and computes the times from
operation counts and the rates of a named device. Variables, kinds and orders are the same either way. docs/task.md says
where each figure comes from.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, Protocol

import torch

from autosync.errors import InputError, OperationError, TaskError
from autosync.specs.batch_times import BatchTime
from autosync.specs.model import ModelSpec
from autosync.specs.profile.assemble import ProfileRecords, assemble
from autosync.specs.profile.batch_sizes import check_sizes, with_microbatches
from autosync.specs.profile.computed_training import ComputedTraining
from autosync.specs.profile.device_rates import DEFAULT_RATE, DeviceRate, device_rate
from autosync.specs.profile.find_cuts import FoundCuts
from autosync.specs.profile.measured_training import MeasuredTraining
from autosync.specs.profile.use_draws import UseDraws, are_all_used
from autosync.specs.split_layers import SplitLayers
from autosync.specs.task import Task

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
    If a step does not use all parameters, further passes sample which ones are used (`ModelSpec.use_sample`).
    With `cuts`, the spec says where the model can be cut into stages (`Timeline.cuts`), and without `batch_sizes`, the
    passes of some microbatches are timed. If the model's graph changes, its batching policies are measured too.
    """
    if batch_sizes:
        check_sizes(task, batch_sizes)
    if steps is not None and steps < 1:
        raise InputError(f"{steps} steps measure nothing", rule="steps is 1 or more")
    tell = progress or (lambda _: None)
    # The user's program may continue after this: its random numbers must not change.
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        if times == "measured":
            place = _device(device)
            spec = _profiled(task, MeasuredTraining(task, place, seed), steps, batch_sizes, tell, cuts=cuts)
            if task.graphs is not None:
                tell("batching policies")
                generator = torch.Generator().manual_seed(seed)
                spec = replace(spec, graphs=task.graphs.measure(task, generator, place))
            if place.type == "cuda":
                # The ranks of a tuning on this machine need the memory that torch keeps for later.
                gc.collect()
                torch.cuda.empty_cache()
            return spec
        try:
            training = ComputedTraining(task, _rate(rate), seed)
            return _profiled(task, training, steps, batch_sizes, tell, cuts=cuts)
        except TaskError as error:
            raise _with_advice(error) from error.__cause__


class _Training(Protocol):
    """A task that trains.

    `records` has its steps, `use_draws` further ones of several ranks, `times_of_sizes` its passes with other batches,
    and `cuts` its cuts. `split_layers` times the gradients of weights that these cuts' passes can leave for later.
    """

    def records(self, steps: int | None, tell: Progress) -> ProfileRecords: ...
    def use_draws(self) -> UseDraws: ...
    def times_of_sizes(self, sizes: Sequence[int], num_rounds: int = ...) -> tuple[BatchTime, ...]: ...
    def cuts(self) -> FoundCuts: ...
    def split_layers(self, found: FoundCuts, spec: ModelSpec) -> tuple[SplitLayers, ...]: ...


def _profiled(
    task: Task,
    training: _Training,
    steps: int | None,
    batch_sizes: Sequence[int],
    tell: Progress,
    *,
    cuts: bool,
) -> ModelSpec:
    records = training.records(steps, tell)
    spec = assemble(task, records)
    spec = spec if task.weight is None else replace(spec, weighs=True)
    if not are_all_used(records):
        tell("which parameters steps use")
        spec = replace(spec, use_sample=training.use_draws().sample([variable.name for variable in spec.variables]))
    if batch_sizes:
        tell(f"batches of {', '.join(map(str, sorted(set(batch_sizes))))} examples")
        spec = replace(spec, timeline=replace(spec.timeline, sizes=training.times_of_sizes(batch_sizes)))
    return _with_cuts(spec, training, tell) if cuts else spec


def _with_cuts(spec: ModelSpec, training: _Training, tell: Progress) -> ModelSpec:
    """Return the spec with the cuts of its model, and with the times of microbatches if stages may compute some."""
    tell("cuts")
    found = training.cuts()
    timeline = replace(spec.timeline, cuts=found.cuts, uncut=found.uncut, mixes=found.mixes)
    spec = replace(spec, timeline=timeline, notes=(*spec.notes, *filter(None, (found.note,))))
    if not found.cuts or found.mixes:
        return spec
    if not timeline.sizes:
        tell("microbatches")
        spec = replace(spec, timeline=with_microbatches(spec, training.times_of_sizes))
    if not spec.timeline.cuts:
        return spec
    tell("gradients of weights")
    return replace(spec, timeline=replace(spec.timeline, splits=training.split_layers(found, spec)))


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
