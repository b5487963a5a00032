"""How much is measured: of each strategy that is tried, and of the finalists in the proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autosync.trials.compare import DEFAULT_DESIGN, Design
from autosync.trials.policy import DEFAULT_POLICY, Policy

FEWEST_STEPS = 6
"""Two that are discarded, and two windows of two, which tell whether steps are steady."""

WIDE_SHARE = 0.05
"""How wide the interval of a trial of few long steps may be: the fastest are measured again in any case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """`trial` says how long each strategy that is tried is measured.

    Long steps vary less, and what a change of strategy leaves behind is over after fewer of them. So where the fewest
    steps of a trial would take longer than `trial_seconds`, there are fewer, a wider interval is enough, and that time
    is all there is, or as long as the fewest steps take. `num_finalists` is how many of the fastest are measured again
    beside stock DDP, `num_predicted` how many of those that are predicted to be, where none was tried; `proof` how much
    of each.
    """

    trial: Policy = DEFAULT_POLICY
    trial_seconds: float | None = None
    proof: Design = DEFAULT_DESIGN
    num_finalists: int = 2
    num_predicted: int = 4

    def __post_init__(self) -> None:
        if min(self.num_finalists, self.num_predicted) < 1:
            raise ValueError(f"{self.num_finalists} finalists, {self.num_predicted} predicted ones (1 or more)")
        if self.trial_seconds is not None and self.trial_seconds <= 0:
            raise ValueError(f"trials of {self.trial_seconds:g} s (above 0)")

    def policy(self, step_seconds: float) -> Policy:
        """How long a strategy is measured where steps take about so long."""
        most = self.trial.min_warmup_steps + self.trial.min_steps
        if self.trial_seconds is None or self.trial_seconds >= most * step_seconds:
            return self.trial
        num_steps = max(FEWEST_STEPS, round(self.trial_seconds / step_seconds))
        share = max(2, num_steps // 3)
        num_warmup = min(share, self.trial.min_warmup_steps)
        return replace(
            self.trial,
            min_warmup_steps=num_warmup,
            window_steps=min(share, self.trial.window_steps),
            min_steps=min(num_steps - num_warmup, self.trial.min_steps),
            interval_share=max(self.trial.interval_share, WIDE_SHARE),
            budget_seconds=min(self.trial.budget_seconds, max(self.trial_seconds, num_steps * step_seconds)),
        )


NORMAL_EFFORT = Effort(trial=Policy(max_steps=60, interval_share=0.03), trial_seconds=6.0)
"""A trial need not be as sure as a comparison: the proof measures the fastest again."""

QUICK_EFFORT = Effort(
    trial=Policy(max_warmup_steps=8, min_steps=8, max_steps=24, budget_seconds=5.0),
    trial_seconds=2.0,
    proof=Design(num_steps=36, budget_seconds=20.0),
    num_predicted=2,
)
"""Enough to see how it goes: small differences are not found."""

EFFORTS: Mapping[str, Effort] = {"normal": NORMAL_EFFORT, "quick": QUICK_EFFORT}
"""By the names that the command line has for them."""
