"""Objects that a script holds are told from those that only we hold."""

import torch

from autosync.runtime.session.held_objects import HeldObjects


def test_what_else_refers_to_an_object_is_noticed() -> None:
    objects = {name: torch.ones(()) for name in "abc"}
    held = HeldObjects(objects)
    assert held.names() == []
    kept = [objects["b"]]
    assert held.names() == ["b"]
    kept.clear()
    assert held.names() == []


def test_an_object_that_takes_the_place_of_another_is_held_by_us_alone() -> None:
    objects = {"a": torch.ones(())}
    held = HeldObjects(objects)
    before = objects["a"]
    objects["a"] = torch.zeros(())
    assert held.names() == []
    assert bool(before)


def test_a_gradient_that_was_dropped_is_not_held() -> None:
    objects = {"a": torch.ones(())}
    held = HeldObjects(objects)
    parameter = torch.zeros((), requires_grad=True)
    parameter.grad = objects["a"]
    assert parameter.grad is objects["a"]
    parameter.grad = None
    assert held.names() == []
