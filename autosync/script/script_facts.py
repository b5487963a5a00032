"""What the observation of a script finds, and how many steps it takes. Nothing here loads torch."""

from __future__ import annotations

from dataclasses import dataclass

from autosync.specs.model import ModelSpec

WARMUP_STEPS = 2
"""The steps after the first whose times do not count: DDP rebuilds its buckets in them."""
MEASURED_STEPS = 6
OBSERVED_STEPS = 1 + WARMUP_STEPS + MEASURED_STEPS
"""The first step, in which autograd is asked for the order of uses, the warm-up, and the steps that are measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFacts:
    """What was seen of a script: its model, and the reasons why only its own optimizer may update."""

    model: ModelSpec
    reasons: tuple[str, ...]
