"""Warnings about profiles that cannot be trusted."""

from __future__ import annotations

from autosync.specs.model import ModelSpec
from autosync.specs.profile.steadiness import LEAST_STEPS
from autosync.specs.profiled import Profiled
from autosync.units import format_time


def profile_warning(model: ModelSpec) -> str | None:
    """Return one line that says why the times of a model spec cannot be trusted, or None if they can."""
    found = model.timeline.profiled
    if found is None or not found.flags:
        return None
    step = f"{format_time(model.step_seconds)}{_interval(found)}"
    if "busy_machine" in found.flags:
        return f"the profile was taken on a busy machine: {step} (profile again on an idle one)"
    steps = f"{found.num_steps} steps"
    return f"the profile is not steady: {step} after {steps} (profile again, with more --steps)"


def profile_fields(model: ModelSpec) -> dict[str, object] | None:
    """Return the quality of a profile for `--json`; None if times were computed, or measured by an older version."""
    found = model.timeline.profiled
    if found is None:
        return None
    return {
        "seconds": model.step_seconds,
        "low_seconds": found.low_seconds,
        "high_seconds": found.high_seconds,
        "num_steps": found.num_steps,
        "other_cpu_share": found.other_cpu_share,
        "waited_share": found.waited_share,
        "flags": list(found.flags),
        "in_words": profile_warning(model),
    }


def interval_in_words(model: ModelSpec) -> str | None:
    """Describe the interval of a profile's step time and its number of steps; None if the quality is unknown."""
    found = model.timeline.profiled
    if found is None:
        return None
    steps = "1 step" if found.num_steps == 1 else f"{found.num_steps} steps"
    if found.low_seconds is None or found.high_seconds is None:
        return f"{steps} measured, too few for an interval ({LEAST_STEPS} or more)"
    return f"95 % between {format_time(found.low_seconds)} and {format_time(found.high_seconds)}, from {steps}"


def _interval(found: Profiled) -> str:
    if found.low_seconds is None or found.high_seconds is None:
        return ""
    return f", 95 % between {format_time(found.low_seconds)} and {format_time(found.high_seconds)}"
