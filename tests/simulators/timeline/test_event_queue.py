"""The queue of upcoming events, and steps in which everything happens at one moment."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autosync.simulators.timeline import event_queue
from autosync.simulators.timeline.scene import DUE, Heap
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.specs.model import ModelSpec, Segment, Timeline
from autosync.strategy.presets import build_preset
from autosync.testing.simulators import FREE, two_layers
from tests.helpers.example_plans import cluster_of

push: Any = getattr(event_queue.push, "py_func", event_queue.push)
pop: Any = getattr(event_queue.pop, "py_func", event_queue.pop)


def test_a_moment_may_have_more_events_than_are_ever_upcoming() -> None:
    """Events of the moment come in their order, however many come and go at it; then come those of later moments."""
    rng = random.Random(1)
    heap = Heap(np.zeros(1), np.empty(12, DUE).view(np.recarray), np.empty(6, np.int64), np.zeros(4, np.int64))
    waiting: list[int] = []
    push(heap, 2.0, 1000)
    push(heap, 1.0, 999)
    for value in range(200):
        push(heap, 0.0, value)
        waiting.append(value)
        while waiting and (len(waiting) == 6 or rng.random() < 0.4):
            assert pop(heap) == waiting.pop(0)
    assert [pop(heap) for _ in range(len(waiting) + 3)] == [*waiting, 999, 1000, -1]


def _without_times(num_segments: int) -> ModelSpec:
    model = two_layers()
    names = tuple(variable.name for variable in model.variables)
    rest = tuple(Segment(module=f"part{number}", seconds=0.0, variables=()) for number in range(num_segments))
    whole = (Segment(module="all", seconds=0.0, variables=names), *rest)
    return replace(model, timeline=Timeline(device="none", source="computed", forward=whole, backward=whole[::-1]))


@pytest.mark.parametrize("num_segments", [0, 300])
def test_a_step_may_take_no_time(num_segments: int) -> None:
    model, cluster = _without_times(num_segments), cluster_of(1)
    timeline = TimelineSimulator(model, cluster, costs=FREE)
    for preset in ("ddp", "local_sgd"):
        strategy = build_preset(preset, model, cluster)
        (found,) = timeline.predict([strategy])
        assert 0 <= found.seconds < 1e-6
        explained = timeline.explain(strategy)
        assert 0 <= explained.seconds < 1e-6
        assert all(0 <= one.busy_share < 1 for one in explained.links)
        assert timeline.trace(strategy)
