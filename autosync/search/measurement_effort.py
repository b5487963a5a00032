"""Decides how long each trial measures a strategy, and how long the proof measures the finalists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autosync.trials.compare import DEFAULT_DESIGN, Design
from autosync.trials.policy import DEFAULT_POLICY, Policy

FEWEST_STEPS = 6
"""The fewest steps of a trial: two to discard, and two windows of two steps, which show whether steps are steady."""

WIDE_SHARE = 0.05
"""The width of the confidence interval, as a share of the step time, that is enough in a trial of few long steps. The
fastest strategies are measured again anyway."""

EARLY_DESIGN = Design(num_steps=36, budget_seconds=60.0)
"""Three fifths of the usual steps, in half of the time if they are long. Intervals are about 1.3 times as wide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """The effort of measuring strategies: `trial` for each trial, `proof` for the contestants of the proof.

    `early_proof` is for the proof before the trials: a user waits for it, and what is faster is proved again.
    Long steps vary less and settle after fewer steps. So if the usual minimum of steps would take longer than
    `trial_seconds`, a trial has fewer steps and accepts a wider interval. It then takes at most `trial_seconds`, or the
    time of `FEWEST_STEPS` steps if that is longer. If samples are means of several steps (see trials.periods), they
    count in place of steps. `num_finalists` is the number of fastest strategies in the proof; `num_predicted` is this
    number if no strategy was tried and predictions decide.
    """

    trial: Policy = DEFAULT_POLICY
    trial_seconds: float | None = None
    proof: Design = DEFAULT_DESIGN
    early_proof: Design = EARLY_DESIGN
    num_finalists: int = 2
    num_predicted: int = 4

    def __post_init__(self) -> None:
        if min(self.num_finalists, self.num_predicted) < 1:
            raise ValueError(f"{self.num_finalists} finalists, {self.num_predicted} predicted ones (1 or more)")
        if self.trial_seconds is not None and self.trial_seconds <= 0:
            raise ValueError(f"trials of {self.trial_seconds:g} s (above 0)")

    def policy(self, step_seconds: float, steps_each: int = 1) -> Policy:
        """Return how long a strategy with steps of about this time is measured; a sample has `steps_each` steps."""
        sample_seconds = step_seconds * steps_each
        most = self.trial.min_warmup_steps + self.trial.min_steps
        if self.trial_seconds is None or self.trial_seconds >= most * sample_seconds:
            return self.trial
        num_steps = max(FEWEST_STEPS, round(self.trial_seconds / sample_seconds))
        share = max(2, num_steps // 3)
        num_warmup = min(share, self.trial.min_warmup_steps)
        return replace(
            self.trial,
            min_warmup_steps=num_warmup,
            window_steps=min(share, self.trial.window_steps),
            min_steps=min(num_steps - num_warmup, self.trial.min_steps),
            interval_share=max(self.trial.interval_share, WIDE_SHARE),
            budget_seconds=min(self.trial.budget_seconds, max(self.trial_seconds, num_steps * sample_seconds)),
        )

    def proof_policy(self, step_seconds: float, steps_each: int = 1) -> Policy:
        """Return how long a contestant of the proof with steps of about this time is warmed up.

        Long steps are warmed up for half as long as in a trial: the rounds of the proof show whether they are steady.
        """
        if self.trial_seconds is None:
            return self.policy(step_seconds, steps_each)
        return replace(self, trial_seconds=self.trial_seconds / 2).policy(step_seconds, steps_each)


NORMAL_EFFORT = Effort(trial=Policy(max_steps=60, interval_share=0.03), trial_seconds=6.0)
"""The default effort. A trial may be less certain than a comparison, because the proof measures the fastest again."""

QUICK_EFFORT = Effort(
    trial=Policy(max_warmup_steps=8, min_steps=8, max_steps=24, budget_seconds=5.0),
    trial_seconds=2.0,
    proof=Design(num_steps=36, budget_seconds=20.0),
    early_proof=Design(num_steps=36, budget_seconds=20.0),
    num_predicted=2,
)
"""An effort for a first impression, which does not find small differences."""

EFFORTS: Mapping[str, Effort] = {"normal": NORMAL_EFFORT, "quick": QUICK_EFFORT}
"""The efforts by their names on the command line."""
