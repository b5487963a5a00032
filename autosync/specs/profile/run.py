"""Profiling: runs a task's real model and records everything that synchronisation depends on.

`profile` runs a few steps on a device and measures them, or runs them without a device and computes the times from
operation counts and the rates of a named device, or scales measured times to another device. Variables, kinds and
orders are the same in all ways. docs/task.md says where each figure comes from.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch

from autosync.errors import InputError, OperationError, TaskError
from autosync.specs.batch_times import BatchTime
from autosync.specs.model import ModelSpec
from autosync.specs.profile.assemble import ProfileRecords, assemble
from autosync.specs.profile.batch_sizes import check_sizes, with_microbatches
from autosync.specs.profile.computed_training import ComputedTraining
from autosync.specs.profile.device_rates import OperationRate
from autosync.specs.profile.find_cuts import CHANGING, FoundCuts
from autosync.specs.profile.known_devices import DEFAULT_DEVICE, Precision, known_device, training_rate
from autosync.specs.profile.measured_training import MeasuredTraining, device_name
from autosync.specs.profile.scaled_times import scaled
from autosync.specs.profile.use_draws import UseDraws, are_all_used
from autosync.specs.rank_variables import rank_threads
from autosync.specs.split_layers import SplitLayers
from autosync.specs.task import Task

Progress = Callable[[str], None]


def profile(
    task: Task,
    *,
    device: str = "cpu",
    steps: int | None = None,
    times: Literal["measured", "computed", "scaled"] = "measured",
    rate: OperationRate | str = DEFAULT_DEVICE,
    precision: Precision = "full",
    seed: int = 0,
    batch_sizes: Sequence[int] = (),
    cuts: bool = False,
    progress: Progress | None = None,
) -> ModelSpec:
    """Profile a task and return its model spec.

    `rate` is the device of computed or scaled times, or the name of a known one, which then trains in `precision`.
    Scaled times are measured on `device`, a known one too, and scaled to `rate` by what is computed for both.
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
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())), _threads_of_a_rank():
        asked = _Asked(task=task, steps=steps, batch_sizes=batch_sizes, cuts=cuts, seed=seed, tell=tell)
        if times == "measured":
            return _measured(asked, _device(device), graphs=True)
        wanted = _rate(rate, precision)
        if times == "computed":
            return _computed(asked, wanted)
        place = _device(device)
        if place.type != "cuda":
            raise InputError(f"times on {device} cannot be scaled", rule="scaled times are measured on a known GPU")
        here = _rate(device_name(place), precision)
        measured = _measured(asked, place, graphs=False)
        return scaled(measured, here=_computed(asked, here), there=_computed(asked, wanted))


@contextlib.contextmanager
def _threads_of_a_rank() -> Iterator[None]:
    """Compute with as many threads as ranks do."""
    before = torch.get_num_threads()
    torch.set_num_threads(rank_threads())
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What is to be profiled."""

    task: Task
    steps: int | None
    batch_sizes: Sequence[int]
    cuts: bool
    seed: int
    tell: Progress


def _measured(asked: _Asked, place: torch.device, *, graphs: bool) -> ModelSpec:
    torch.manual_seed(asked.seed)
    spec = _profiled(asked, MeasuredTraining(asked.task, place, asked.seed))
    if graphs and asked.task.graphs is not None:
        asked.tell("batching policies")
        generator = torch.Generator().manual_seed(asked.seed)
        spec = replace(spec, graphs=asked.task.graphs.measure(asked.task, generator, place))
    if place.type == "cuda":
        # The ranks of a tuning on this machine need the memory that torch keeps for later.
        gc.collect()
        torch.cuda.empty_cache()
    return spec


def _computed(asked: _Asked, rate: OperationRate) -> ModelSpec:
    torch.manual_seed(asked.seed)
    try:
        return _profiled(asked, ComputedTraining(asked.task, rate, asked.seed))
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


def _profiled(asked: _Asked, training: _Training) -> ModelSpec:
    task, tell = asked.task, asked.tell
    records = training.records(asked.steps, tell)
    spec = assemble(task, records)
    spec = spec if task.weight is None else replace(spec, weighs=True)
    if not are_all_used(records):
        tell("which parameters steps use")
        spec = replace(spec, use_sample=training.use_draws().sample([variable.name for variable in spec.variables]))
    if asked.batch_sizes:
        tell(f"batches of {', '.join(map(str, sorted(set(asked.batch_sizes))))} examples")
        spec = replace(spec, timeline=replace(spec.timeline, sizes=training.times_of_sizes(asked.batch_sizes)))
    return _with_cuts(spec, training, tell) if asked.cuts else spec


def _with_cuts(spec: ModelSpec, training: _Training, tell: Progress) -> ModelSpec:
    """Return the spec with the cuts of its model, and with the times of microbatches if stages may compute some."""
    tell("cuts")
    found = training.cuts()
    if found.cuts and found.modules != tuple(segment.module for segment in spec.timeline.forward):
        # The numbers of these cuts would be those of other segments in the timeline.
        found = FoundCuts(uncut=CHANGING)
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


def _rate(rate: OperationRate | str, precision: Precision) -> OperationRate:
    """Return the device; a known one uses TF32 where torch is set to use it, in this process."""
    if not isinstance(rate, str):
        return rate
    return training_rate(
        known_device(rate),
        precision,
        tf32_products=_allows_tf32(torch.backends.cuda.matmul, torch.backends.cuda.matmul),
        tf32_convolutions=_allows_tf32(getattr(torch.backends.cudnn, "conv", None), torch.backends.cudnn),
    )


def _allows_tf32(settings: Any, old_settings: Any) -> bool:
    """Return whether torch uses TF32 for some operations. Before torch 2.9, there are only the old settings."""
    precision = getattr(settings, "fp32_precision", None)
    return bool(old_settings.allow_tf32) if precision is None else precision == "tf32"


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
