"""A step lasts from its first forward pass to the next one's."""

from __future__ import annotations

from autosync.script.step_meter import StepMeter, StepTime


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _begun() -> tuple[_Clock, StepMeter]:
    """A meter whose first step has begun, and its clock."""
    clock = _Clock()
    meter = StepMeter(clock=clock)
    meter.ends_a_step()
    meter.step_begins()
    return clock, meter


def test_a_step_has_its_passes_its_update_and_what_follows() -> None:
    clock = _Clock()
    meter = StepMeter(clock=clock)
    assert meter.ends_a_step()
    assert meter.take() == []
    meter.step_begins()
    clock.now = 2.0
    # The second pass of a step that accumulates.
    assert not meter.ends_a_step()
    clock.now = 5.0
    meter.update_ends()
    with meter.waiting(object()):
        clock.now = 5.75
    clock.now = 6.0
    assert meter.ends_a_step()
    assert meter.take() == [StepTime(seconds=6.0, gap_seconds=0.25, wait_seconds=0.75)]
    meter.step_begins()
    meter.update_ends()
    assert meter.ends_a_step()
    # Each step is handed out once, so a long training keeps none of them.
    assert [one.wait_seconds for one in meter.take()] == [0.0]
    assert meter.take() == []
    assert meter.num_steps == 2


def test_waits_before_the_update_are_no_part_of_what_follows_it() -> None:
    """A step that accumulates asks for batches between its passes."""
    clock, meter = _begun()
    with meter.waiting(object()):
        clock.now = 2.0
    meter.update_ends()
    with meter.waiting(object()):
        clock.now = 2.5
    clock.now = 3.0
    assert meter.ends_a_step()
    assert meter.take() == [StepTime(seconds=3.0, gap_seconds=0.5, wait_seconds=2.5)]


def test_passes_whose_update_is_skipped_are_no_step() -> None:
    clock, meter = _begun()
    clock.now = 2.0
    meter.update_is_skipped()
    assert meter.has_no_update
    meter.step_begins()
    assert not meter.ends_a_step()
    clock.now = 5.0
    # Of two optimizers, one has stepped.
    meter.update_is_skipped()
    meter.update_ends()
    assert not meter.has_no_update
    assert meter.ends_a_step()
    assert [one.seconds for one in meter.take()] == [3.0]


def test_what_is_done_between_two_steps_is_part_of_neither() -> None:
    clock = _Clock()
    meter = StepMeter(clock=clock)
    meter.ends_a_step()
    clock.now = 10.0
    meter.step_begins()
    clock.now = 11.0
    meter.update_ends()
    meter.disturb("bare_forward")
    meter.ends_a_step()
    clock.now = 20.0
    meter.step_begins()
    meter.update_ends()
    clock.now = 21.0
    meter.ends_a_step()
    steps = meter.take()
    assert [one.seconds for one in steps] == [1.0, 1.0]
    assert [one.disturbances for one in steps] == [{"bare_forward"}, set()]
