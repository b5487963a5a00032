"""Models that no strategy can divide, to compare searches with stages and without."""

from __future__ import annotations

from dataclasses import replace

from autosync.specs.model import ModelSpec

WITHOUT_CUTS = "this benchmark took the cuts away"


def without_cuts(model: ModelSpec) -> ModelSpec:
    """Return the spec of a model that no strategy can divide."""
    return replace(model, timeline=replace(model.timeline, cuts=(), uncut=WITHOUT_CUTS))
