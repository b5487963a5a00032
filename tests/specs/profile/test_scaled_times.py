"""Measured times are scaled by what is computed for both devices, segment by segment."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from autosync import Task
from autosync.errors import OperationError
from autosync.specs.batch_times import BatchTime
from autosync.specs.model import ModelSpec, Segment
from autosync.specs.profile.device_rates import DeviceRate
from autosync.specs.profile.run import profile
from autosync.specs.profile.scaled_times import scaled
from autosync.specs.split_layers import SplitLayers

# One device has slow arithmetic, the other slow memory.
ARITHMETIC = DeviceRate(name="arithmetic", peak_operations=1e6, peak_bytes=1e12)
MEMORY = DeviceRate(name="memory", peak_operations=1e12, peak_bytes=1e6)


def computed(rate: DeviceRate, width: int = 8) -> ModelSpec:
    task = Task(
        model=lambda: nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 2)),
        batch=lambda generator: torch.ones(6, 4),
        loss=lambda model, batch: model(batch).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=6,
    )
    return profile(task, times="computed", rate=rate, steps=1, batch_sizes=(2, 4, 6))


HERE, THERE = computed(ARITHMETIC), computed(MEMORY)


def segments(spec: ModelSpec) -> tuple[Segment, ...]:
    return (*spec.timeline.forward, *spec.timeline.backward, *spec.timeline.optimizer)


def measured(factor: float, spec: ModelSpec = HERE) -> ModelSpec:
    return replace(spec, timeline=replace(spec.timeline.dilated(factor), source="measured", device="mine", note="so"))


@given(st.floats(min_value=0.01, max_value=100))
def test_what_is_measured_as_computed_is_scaled_to_what_is_computed_there(factor: float) -> None:
    found = scaled(measured(factor), here=HERE, there=THERE)
    for ours, theirs in zip(segments(found), segments(THERE), strict=True):
        assert (ours.module, ours.variables) == (theirs.module, theirs.variables)
        assert ours.seconds == pytest.approx(theirs.seconds * factor)
    sizes = [one.seconds for one in found.timeline.sizes]
    assert sizes == pytest.approx([one.seconds * factor for one in THERE.timeline.sizes])


def test_the_same_device_changes_no_time() -> None:
    own = measured(3.0)
    assert segments(scaled(own, here=HERE, there=HERE)) == segments(own)


def test_the_spec_says_where_its_times_come_from() -> None:
    timeline = scaled(measured(2.0), here=HERE, there=THERE).timeline
    assert (timeline.device, timeline.source, timeline.profiled) == ("memory", "computed", None)
    assert timeline.note.startswith("measured on mine (so), and scaled to memory by the times that are computed")


def test_a_segment_without_computed_time_takes_the_ratio_of_the_whole_step() -> None:
    [first, *rest] = HERE.timeline.forward
    idle = replace(HERE, timeline=replace(HERE.timeline, forward=(replace(first, seconds=0.0), *rest)))
    found = scaled(measured(1.0), here=idle, there=THERE)
    ratio = THERE.timeline.seconds / idle.timeline.seconds
    assert found.timeline.forward[0].seconds == pytest.approx(first.seconds * ratio)


def test_sizes_that_were_not_computed_take_that_ratio_too() -> None:
    own = measured(1.0)
    other = replace(
        own, timeline=replace(own.timeline, sizes=tuple(BatchTime(num_examples=n, seconds=n) for n in (1, 2, 3)))
    )
    found = scaled(other, here=HERE, there=THERE).timeline.sizes
    assert found[0].seconds == pytest.approx(THERE.timeline.seconds / HERE.timeline.seconds)


def test_gradients_that_can_come_later_are_scaled_with_their_layers() -> None:
    def split(spec: ModelSpec, *seconds: float) -> ModelSpec:
        splits = tuple(SplitLayers(segment=place, seconds=(one,) * 3) for place, one in enumerate(seconds))
        return replace(spec, timeline=replace(spec.timeline, splits=splits))

    found = scaled(split(measured(1.0), 1.0, 1.0), here=split(HERE, 2.0), there=split(THERE, 6.0))
    ratio = THERE.timeline.seconds / HERE.timeline.seconds
    assert found.timeline.splits is not None
    assert [one.seconds[0] for one in found.timeline.splits] == pytest.approx([3.0, ratio])
    assert scaled(measured(1.0), here=HERE, there=THERE).timeline.splits is None


def test_another_order_of_modules_is_refused() -> None:
    [first, *rest] = HERE.timeline.backward
    other = replace(HERE, timeline=replace(HERE.timeline, backward=(replace(first, module="another"), *rest)))
    with pytest.raises(OperationError, match="computes in another order on this device"):
        scaled(measured(1.0), here=other, there=THERE)
