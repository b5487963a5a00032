"""Whether the next trials are worth their time: what they are expected to save of a training, and what they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autosync import units
from autosync.search.measurement_effort import Effort
from autosync.search.stopping import LEAST_GAIN
from autosync.search.trust.error_belief import ErrorBelief
from autosync.search.trust.expectation import Expectation
from autosync.search.trust.expected_gain import expected_gain

TRAINING_SECONDS = 36_000.0
"""The duration of the training for which a search without a number of trials saves time: ten hours."""

SETUP_SECONDS = 0.2
"""The time that a trial takes besides its steps: the median of 50 strategies was 0.21 s (docs/notes/probes.md)."""

RUN_STEPS = 4
"""The samples of a trial that are not counted, because they begin a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTrials:
    """The next trials of a search: what they are expected to bring, and what they cost.

    `gain` is the share of the best step that they are expected to save. `seconds` is the time that they take; with
    `is_proof_due`, it includes that of another proof, which they would need.
    """

    num_trials: int
    gain: float
    seconds: float
    is_proof_due: bool
    training_seconds: float

    @property
    def saved_seconds(self) -> float:
        """The time that they are expected to save of a training that would begin now."""
        return self.gain * self.training_seconds

    @property
    def are_worth_it(self) -> bool:
        return self.saved_seconds > self.seconds

    def fields(self) -> dict[str, object]:
        """Return the fields of `summary.json`."""
        return {
            "num_trials": self.num_trials,
            "expected_gain": self.gain,
            "saved_seconds": self.saved_seconds,
            "seconds": self.seconds,
            "with_proof": self.is_proof_due,
            "training_seconds": self.training_seconds,
            "in_words": str(self),
        }

    def __str__(self) -> str:
        is_one = self.num_trials == 1
        which = "the next trial is" if is_one else f"the next {self.num_trials} trials are"
        saved = units.format_time(_rounded(self.saved_seconds))
        hours, rest = divmod(self.training_seconds, 3600)
        training = f"{hours:g} h" if hours and not rest else units.format_time(self.training_seconds)
        proof = " with another proof" if self.is_proof_due else ""
        return (
            f"{which} expected to shorten a step by {100 * self.gain:.2g}%, which saves {saved} of a training of "
            f"{training}; {'it takes' if is_one else 'they take'} {units.format_time(_rounded(self.seconds))}{proof}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialWorth:
    """Weighs the next trials of a study.

    `least_seconds` is the time that no strategy can beat, or 0. With `steps_train`, the steps of trials are steps of a
    training, so they cost only the time by which they are slower than the best so far.
    """

    effort: Effort
    training_seconds: float
    least_seconds: float
    steps_train: bool = False

    def of(
        self, best_seconds: float, expected: Sequence[Expectation], belief: ErrorBelief, *, proof_seconds: float = 0.0
    ) -> NextTrials:
        """Return the first of these trials that are worth most; if none are worth their time, all of them.

        `proof_seconds` is the time of the proof that they would need; 0 if a proof is due anyway.
        """
        found = []
        seconds = proof_seconds
        for number, one in enumerate(expected, start=1):
            seconds += trial_seconds(
                self.effort, one.seconds, one.steps_each, made_seconds=best_seconds if self.steps_train else 0.0
            )
            gain = expected_gain(
                best_seconds, expected[:number], belief, least_seconds=self.least_seconds, least_gain=LEAST_GAIN
            )
            found.append(
                NextTrials(
                    num_trials=number,
                    gain=gain,
                    seconds=seconds,
                    is_proof_due=proof_seconds > 0,
                    training_seconds=self.training_seconds,
                )
            )
        best = max(found, key=lambda one: one.saved_seconds - one.seconds)
        return best if best.are_worth_it else found[-1]


def trial_seconds(effort: Effort, step_seconds: float, steps_each: int = 1, *, made_seconds: float = 0.0) -> float:
    """Return about how long a trial takes that measures samples of `steps_each` steps of this time.

    Of each step, `made_seconds` are not lost.

    It depends on nothing but the arguments, so that a search with the same measurements takes the same course.
    """
    policy = effort.policy(step_seconds, steps_each)
    num_samples = max(policy.min_warmup_steps + policy.min_steps, policy.min_warmup_steps + 2 * policy.window_steps)
    return SETUP_SECONDS + (num_samples + RUN_STEPS) * steps_each * max(step_seconds - made_seconds, 0.0)


def _rounded(seconds: float) -> float:
    """Return seconds as precisely as an expectation deserves."""
    return float(f"{seconds:.2g}") if seconds < 100 else round(seconds)
