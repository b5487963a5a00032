"""What tuning a script tells of its waits for input."""

from __future__ import annotations

import pytest

from autosync.script_tuning.input_waits import InputWaits


def test_waits_that_matter_are_told_with_the_reason_why_nothing_was_tried() -> None:
    waits = InputWaits.of([[0.1, 0.1, 0.1], [0.05, 0.15, 0.1]], [[0.02, 0.03, 0.01], [0.01, 0.01, 0.01]])
    assert waits is not None
    assert waits.share == pytest.approx(0.2)
    assert waits.is_worth_telling
    assert waits.fields() == pytest.approx({"step_seconds": 0.1, "wait_seconds": 0.02})
    words = str(waits)
    assert words.startswith("input: a step waited 20 ms of 100 ms for its batch")
    assert "were not tried" in words
    assert "autosync input tune" in words


def test_few_steps_that_wait_for_all_are_told() -> None:
    """Most steps find their batches ready."""
    waits = InputWaits.of([[0.1, 0.1, 0.1, 0.5]], [[0.0, 0.0, 0.0, 0.4]])
    assert waits is not None
    assert waits.fields() == pytest.approx({"step_seconds": 0.2, "wait_seconds": 0.1})


def test_short_waits_are_not_told() -> None:
    waits = InputWaits.of([[0.1]], [[0.001]])
    assert waits is not None
    assert not waits.is_worth_telling
    assert InputWaits.of([[], []], [[], []]) is None
