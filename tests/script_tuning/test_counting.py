"""Steps with an evaluation, a checkpoint or a long pause do not count, on whichever rank they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from autosync.script_tuning.counting import NUM_RECENT, NUM_USUAL, StepFilter


def _answer(gaps: list[float], disturbed: tuple[int, ...] = (), seconds: float = 0.1) -> dict[str, Any]:
    return {
        "step_seconds": [seconds] * len(gaps),
        "gap_seconds": gaps,
        "disturbances": [["bare_forward"] if step in disturbed else [] for step in range(len(gaps))],
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


def _with_kinds(kinds: Sequence[Sequence[str]]) -> dict[str, Any]:
    return {**_answer([0.01] * len(kinds)), "disturbances": kinds}


@pytest.mark.parametrize("kind", ["model_state", "bare_forward", "evaluation", "optimizer_state"])
def test_what_a_script_does_in_most_steps_is_training(kind: str) -> None:
    """An average of weights reads the state_dict in each step, and its teacher runs without gradients."""
    filtering = StepFilter()
    filtering.count([_with_kinds([[kind]] * 8 + [[]]), _with_kinds([[]] * 9)])
    assert filtering.count([_with_kinds([[kind]] * 4), _with_kinds([[]] * 4)]) == [True] * 4
    # On another rank, and of another kind, it is none.
    assert filtering.count([_with_kinds([[kind]] * 2), _with_kinds([[], [kind]])]) == [True, False]
    assert filtering.count([_with_kinds([[kind], [kind, "other"]]), _with_kinds([[]] * 2)]) == [True, False]


def test_what_a_script_does_in_every_other_step_is_not() -> None:
    filtering = StepFilter()
    for _ in range(20):
        counts = filtering.count([_with_kinds([["evaluation"], []])])
    assert counts == [False, True]


def test_what_begins_late_is_training_once_most_steps_have_it() -> None:
    filtering = StepFilter()
    filtering.count([_with_kinds([[]] * 500)])
    counts = [filtering.count([_with_kinds([["model_state"]])])[0] for _ in range(NUM_RECENT)]
    assert counts == sorted(counts)
    assert counts.index(True) <= NUM_RECENT // 2


def test_a_long_training_keeps_no_more_than_its_latest_steps() -> None:
    filtering = StepFilter()
    for _ in range(40):
        filtering.count([_answer([0.01] * 16)])
    slower = [filtering.count([_answer([0.4] * 16)])[0] for _ in range(NUM_USUAL // 16)]
    assert not slower[0]
    # What is usual is what the latest steps show, however many came before them.
    assert slower[-1]
