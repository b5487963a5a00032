"""Scales the times that were measured on one device to another, by what is computed for both.

Measured times know what operation counts do not: the code of the model, its kernels and their launches. The table of
known devices knows how the other device differs, in each class of operations. So each segment of the timeline is
multiplied by the ratio of its computed times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autosync.errors import OperationError
from autosync.specs.batch_times import BatchTime
from autosync.specs.model import ModelSpec, Segment
from autosync.specs.split_layers import SplitLayers


def scaled(measured: ModelSpec, *, here: ModelSpec, there: ModelSpec) -> ModelSpec:
    """Return a measured spec with times of another device.

    `here` is computed for the device that was measured, `there` for the other one, both from the same task.
    """
    passes = _seconds(there) / _seconds(here) if _seconds(here) > 0 else 1.0
    own, ours, theirs = measured.timeline, here.timeline, there.timeline
    timeline = replace(
        own,
        device=theirs.device,
        source="computed",
        note=f"measured on {own.device} ({own.note}), and scaled to {theirs.device} by the times that are computed for "
        f"both; {theirs.note}",
        profiled=None,
        forward=_scaled_segments(own.forward, ours.forward, theirs.forward, passes),
        backward=_scaled_segments(own.backward, ours.backward, theirs.backward, passes),
        optimizer=_scaled_segments(own.optimizer, ours.optimizer, theirs.optimizer, passes),
        sizes=_scaled_sizes(own.sizes, ours.sizes, theirs.sizes, passes),
        splits=None
        if own.splits is None
        else _scaled_splits(own.splits, ours.splits or (), theirs.splits or (), passes),
    )
    return replace(measured, timeline=timeline)


def _seconds(spec: ModelSpec) -> float:
    return spec.timeline.seconds


def _scaled_segments(
    measured: Sequence[Segment], here: Sequence[Segment], there: Sequence[Segment], otherwise: float
) -> tuple[Segment, ...]:
    """Return segments whose times are scaled, each by its own ratio, or by `otherwise` if nothing is computed in it."""
    if [(one.module, one.variables) for one in measured] != [(one.module, one.variables) for one in here]:
        raise OperationError(
            "the model computes in another order on this device than without one, so its times cannot be scaled; "
            "profile with --times measured, or --times computed"
        )
    ratios = (
        after.seconds / before.seconds if before.seconds > 0 else otherwise
        for before, after in zip(here, there, strict=True)
    )
    return tuple(replace(one, seconds=one.seconds * ratio) for one, ratio in zip(measured, ratios, strict=True))


def _scaled_sizes(
    measured: Sequence[BatchTime], here: Sequence[BatchTime], there: Sequence[BatchTime], otherwise: float
) -> tuple[BatchTime, ...]:
    ratios = {before.num_examples: after.seconds / before.seconds for before, after in zip(here, there, strict=True)}
    return tuple(replace(one, seconds=one.seconds * ratios.get(one.num_examples, otherwise)) for one in measured)


def _scaled_splits(
    measured: Sequence[SplitLayers], here: Sequence[SplitLayers], there: Sequence[SplitLayers], otherwise: float
) -> tuple[SplitLayers, ...]:
    """Return the layers with scaled times: by the ratio of all their sizes, or by `otherwise`."""
    after = {one.segment: sum(one.seconds) for one in there}
    before = {one.segment: sum(one.seconds) for one in here}
    return tuple(
        one.scaled(after[one.segment] / before[one.segment])
        if before.get(one.segment, 0.0) > 0 and one.segment in after
        else one.scaled(otherwise)
        for one in measured
    )
