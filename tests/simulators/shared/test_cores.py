"""Predictions on several cores are those on one, in the same order."""

from __future__ import annotations

import random
import threading

import pytest

from autosync.simulators.shared.cores import AHEAD, available_cores, on_cores, on_each
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model
from autosync.strategy.space import Space


def test_results_come_in_the_order_of_values() -> None:
    def square(value: int) -> int:
        return value * value

    for count in (1, 3):
        with on_cores(count):
            assert list(on_each(square, range(50))) == [one * one for one in range(50)]


def test_as_many_work_at_the_same_time() -> None:
    """Three calls that wait for one another end."""
    barrier = threading.Barrier(3)
    with on_cores(3):
        assert len(list(on_each(lambda _: barrier.wait(timeout=60), range(3)))) == 3


def test_values_are_not_made_long_before_their_turn() -> None:
    made = []

    def values() -> object:
        for value in range(100):
            made.append(value)
            yield value

    with on_cores(2):
        results = on_each(lambda value: value, values())
        next(results)
        assert len(made) <= AHEAD * 2 + 1
        assert list(results) == list(range(1, 100))


def test_an_error_is_raised() -> None:
    with on_cores(2), pytest.raises(ZeroDivisionError):
        list(on_each(lambda value: 1 / value, [1, 0]))


def test_there_is_a_core() -> None:
    assert available_cores() >= 1
    with pytest.raises(ValueError, match="1 or more"), on_cores(0):
        pass


def test_the_timeline_predicts_the_same_on_two_cores() -> None:
    model, cluster = load_model("acoustic_mlp"), load_cluster("4-hosts-2-racks")
    space, rng = Space(model=model, cluster=cluster), random.Random(1)
    drawn = [one for one in (space.sample(rng) for _ in range(20)) if not one.stages]
    on_one = TimelineSimulator(model, cluster).predict(drawn)
    with on_cores(2):
        assert TimelineSimulator(model, cluster).predict(drawn) == on_one
