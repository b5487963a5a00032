"""Notes become steps. Notes outside training are left out, and the doctor's own time does not count."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autosync.doctor.notes import StepNotes
from autosync.doctor.timing import parts_of


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Iterator[Clock]:
    return iter([Clock()]).__next__()


def _pass(notes: StepNotes, clock: Clock, *, forward: float, backward: float, wait: float = 0.0) -> None:
    notes.pass_begins()
    clock.now += forward
    notes.forward_ends()
    clock.now += backward
    notes.gradient_ready("weight", 4)
    done = notes.message_ready(4) if wait else None
    notes.backward_ends()
    clock.now += wait
    if done is not None:
        done()
    notes.pass_ends()


def _update(notes: StepNotes, clock: Clock, seconds: float) -> bool:
    notes.update_begins()
    clock.now += seconds
    notes.update_ends()
    return notes.step_ends()


def test_the_parts_of_a_step(clock: Clock) -> None:
    notes = StepNotes(clock)
    clock.now += 7
    _pass(notes, clock, forward=1, backward=2)
    _pass(notes, clock, forward=1, backward=2, wait=3)
    assert _update(notes, clock, 0.5)
    found = parts_of(notes.steps[0])
    assert (found.input, found.forward, found.backward, found.wait, found.update) == (7, 2, 4, 3, 0.5)


def test_what_happens_between_steps_is_not_of_the_next(clock: Clock) -> None:
    notes = StepNotes(clock)
    for _ in range(2):
        _pass(notes, clock, forward=1, backward=1)
        assert _update(notes, clock, 1)
        clock.now += 50
        notes.step_begins()
    assert [step.seconds for step in notes.steps] == [3, 3]


def test_all_forward_passes_before_a_backward_pass_are_computation(clock: Clock) -> None:
    """Such are those of contrastive losses, and a teacher's, which wants no gradients."""
    notes = StepNotes(clock)
    for _ in range(2):
        notes.pass_begins()
        clock.now += 5
        notes.buffers_took(2)
        notes.forward_ends()
        clock.now += 0.5
    _pass(notes, clock, forward=1, backward=1)
    _update(notes, clock, 1)
    found = parts_of(notes.steps[0])
    assert (found.input, found.forward, found.buffers, found.backward, found.update) == (1, 7, 4, 1, 1)


def test_a_pass_between_two_microsteps_is_computation_of_the_second(clock: Clock) -> None:
    notes = StepNotes(clock)
    _pass(notes, clock, forward=1, backward=1)
    notes.pass_begins()
    clock.now += 5
    notes.forward_ends()
    _pass(notes, clock, forward=1, backward=1)
    _update(notes, clock, 1)
    found = parts_of(notes.steps[0])
    assert (found.input, found.forward, found.backward) == (0, 7, 2)
    assert len(notes.steps[0].passes) == 2


def test_a_step_ends_with_its_last_update(clock: Clock) -> None:
    """That it was the last is known later; what comes in between is part of the next step."""
    notes = StepNotes(clock)
    for _ in range(2):
        _pass(notes, clock, forward=1, backward=1)
        for _ in range(2):
            notes.update_begins()
            clock.now += 0.5
            notes.update_ends()
        clock.now += 3
        notes.loader_took(0.5)
        notes.loader_took(1.5, is_first=True)
        assert notes.step_ends()
        clock.now += 50
        notes.step_begins()
    assert [step.seconds for step in notes.steps] == [3, 6]
    parts = list(map(parts_of, notes.steps))
    assert [(one.update, one.input, one.loader) for one in parts] == [(1, 0, 0), (1, 3, 2)]
    assert [step.first_batch_seconds for step in notes.steps] == [0, 1.5]


def test_an_update_without_backward_is_no_step(clock: Clock) -> None:
    notes = StepNotes(clock)
    assert not _update(notes, clock, 1)
    assert notes.steps == []


def test_a_closure_computes_within_the_update(clock: Clock) -> None:
    notes = StepNotes(clock)
    notes.update_begins()
    _pass(notes, clock, forward=1, backward=2)
    clock.now += 0.25
    notes.update_ends()
    assert notes.step_ends()
    found = parts_of(notes.steps[0])
    assert (found.forward, found.backward, found.update) == (1, 2, 0.25)


def test_buffers_and_the_search_are_parts_of_the_forward_pass(clock: Clock) -> None:
    notes = StepNotes(clock)
    notes.pass_begins()
    clock.now += 4
    notes.buffers_took(1)
    notes.search_took(2)
    notes.forward_ends()
    notes.backward_ends()
    notes.pass_ends()
    _update(notes, clock, 0)
    found = parts_of(notes.steps[0])
    assert (found.forward, found.buffers, found.search) == (1, 1, 2)


def test_a_step_within_the_forward_pass(clock: Clock) -> None:
    """As Lightning's manual optimization makes it: the forward pass ends where backward begins, and returns later."""
    notes = StepNotes(clock)
    for _ in range(2):
        _pass(notes, clock, forward=1, backward=2)
        assert _update(notes, clock, 0.5)
        notes.step_begins()
        clock.now += 3
        notes.forward_ends()
    assert [parts_of(step).input for step in notes.steps] == [0, 3]
    assert [parts_of(step).forward for step in notes.steps] == [1, 1]
