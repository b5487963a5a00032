"""Steps with an evaluation, a checkpoint or a long pause do not count, on whichever rank they are."""

from __future__ import annotations

from typing import Any

from autosync.script_tuning.counting import StepFilter


def _answer(gaps: list[float], disturbed: tuple[int, ...] = (), seconds: float = 0.1) -> dict[str, Any]:
    return {
        "step_seconds": [seconds] * len(gaps),
        "gap_seconds": gaps,
        "are_disturbed": [step in disturbed for step in range(len(gaps))],
    }


def test_usual_steps_count() -> None:
    assert StepFilter().count([_answer([0.01, 0.012, 0.009]), _answer([0.02, 0.03, 0.02])]) == [True] * 3


def test_what_disturbs_one_rank_counts_on_none() -> None:
    found = StepFilter().count([_answer([0.01] * 4, disturbed=(2,)), _answer([0.01] * 4, disturbed=(0,))])
    assert found == [False, True, False, True]


def test_a_long_pause_between_steps_is_out_of_line() -> None:
    assert StepFilter().count([_answer([0.01, 0.01, 0.2, 0.01])]) == [True, True, False, True]


def test_a_pause_that_is_short_beside_a_step_is_not() -> None:
    # Ten times the usual time, and yet a hundredth of the step.
    assert StepFilter().count([_answer([1e-4, 1e-3, 1e-4])]) == [True] * 3


def test_what_is_usual_is_known_from_earlier_runs() -> None:
    filtering = StepFilter()
    filtering.count([_answer([0.01] * 9)])
    assert filtering.count([_answer([0.5])]) == [False]
    slow_input = StepFilter()
    slow_input.count([_answer([0.5] * 9)])
    assert slow_input.count([_answer([0.5])]) == [True]
