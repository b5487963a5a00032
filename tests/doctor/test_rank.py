"""A rank watches as many steps as the time allows that the doctor gives it."""

from __future__ import annotations

import time

import pytest

from autosync.doctor.rank import LEAST_STEPS, RankDoctor, affordable_steps


@pytest.mark.parametrize(
    ("spent", "step", "num_steps"),
    [(8.0, 0.1, 12), (20.0, 2.0, 12), (20.0, 4.0, 5), (20.0, 20.0, LEAST_STEPS), (59.0, 0.5, LEAST_STEPS)],
)
def test_steps_and_what_follows_them_fit_into_the_budget(spent: float, step: float, num_steps: int) -> None:
    found = affordable_steps(12, 60, spent, step)
    assert found == num_steps
    # Timing the messages takes as long as three steps.
    assert found == LEAST_STEPS or spent + (found + 3) * step < 60


def test_the_time_to_start_counts() -> None:
    """The timeout of the doctor begins with the process, whose imports take seconds."""
    now = time.perf_counter()
    assert RankDoctor(12, 60)._begun < now
