"""How much is measured: of each strategy that is tried, and of the finalists in the proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autosync.trials.compare import DEFAULT_DESIGN, Design
from autosync.trials.policy import DEFAULT_POLICY, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """`trial` says how long each strategy that is tried is measured.

    `num_finalists` is how many of the fastest are measured again beside stock DDP, `proof` how much of each.
    """

    trial: Policy = DEFAULT_POLICY
    proof: Design = DEFAULT_DESIGN
    num_finalists: int = 2

    def __post_init__(self) -> None:
        if self.num_finalists < 1:
            raise ValueError(f"{self.num_finalists} finalists (1 or more)")


NORMAL_EFFORT = Effort()
QUICK_EFFORT = Effort(
    trial=Policy(max_warmup_steps=8, min_steps=8, max_steps=24, budget_seconds=5.0),
    proof=Design(num_steps=36, budget_seconds=20.0),
)
"""Enough to see how it goes: small differences are not found."""

EFFORTS: Mapping[str, Effort] = {"normal": NORMAL_EFFORT, "quick": QUICK_EFFORT}
"""By the names that the command line has for them."""
