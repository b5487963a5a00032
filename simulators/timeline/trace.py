"""Writes a simulated plan as a Chrome trace, in the format of the runtime's traces (`runtime.engine.trace`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from autosync.plan.types import Plan, Transfer
from autosync.simulators.timeline.explanation import name_of
from autosync.simulators.timeline.scene import Played, Scene
from autosync.simulators.timeline.training_program import COMPUTE, EVENT, WAIT
from autosync.specs.cluster import ClusterSpec

_TRAINING, _LOCAL_WORK, _FIRST_LANE = 0, 1, 2
"""The threads, numbered as in the engine."""


def trace_of(plan: Plan, cluster: ClusterSpec, scene: Scene, played: Played) -> list[dict[str, Any]]:
    """Return the events of all ranks; times begin at 0."""
    events: list[dict[str, Any]] = []
    for rank in range(len(scene.trains)):
        if rank >= len(cluster.ranks):
            # The storage from which a rank reads does nothing else.
            break
        host = cluster.nodes[cluster.ranks[rank].node].name
        events.append(_meta("process_name", rank, _TRAINING, f"rank {rank} on {host}"))
        events.append(_meta("thread_name", rank, _TRAINING, "training"))
        events.append(_meta("thread_name", rank, _LOCAL_WORK, "local work"))
        events += [_meta("thread_name", rank, _FIRST_LANE + one, plan.queue_in_words(one)) for one in plan.queues]
        for iteration in range(len(played.step_ends)):
            events += _training(scene, played, rank, iteration)
    for iteration in range(len(played.step_ends)):
        events += _operations(plan, scene, played, iteration)
    return events


def _operations(plan: Plan, scene: Scene, played: Played, iteration: int) -> Iterator[dict[str, Any]]:
    for part, facts in enumerate(scene.parts):
        begun, ended = float(played.begun[iteration, part]), float(played.ended[iteration, part])
        if np.isnan(ended):
            continue
        index, rank = int(facts["operation"]), int(facts["rank"])
        if index >= len(plan.operations):
            yield from _input(scene, index, rank, len(plan.ranks), (begun, ended, iteration))
            continue
        operation = plan.operations[index]
        if isinstance(operation, Transfer):
            kind, thread = "transfer", _FIRST_LANE + operation.lane
        else:
            kind, thread = "local", _LOCAL_WORK
        yield _span(kind, name_of(plan, index), rank, thread, begun, ended, iteration)


def _input(
    scene: Scene, index: int, rank: int, num_ranks: int, when: tuple[float, float, int]
) -> Iterator[dict[str, Any]]:
    """Yield the span of a read, or of a part of making a batch, on the rank that trains on it."""
    begun, ended, iteration = when
    if rank < num_ranks and ended > begun:
        is_read = bool((scene.part_of[index, num_ranks:] >= 0).any())
        thread = _FIRST_LANE + int(scene.lane[index])
        yield _span("input", "read" if is_read else "make the batch", rank, thread, begun, ended, iteration)


def _training(scene: Scene, played: Played, rank: int, iteration: int) -> Iterator[dict[str, Any]]:
    """Yield forward, backward and optimizer, and the waits between them."""
    if not scene.trains[rank]:
        return
    passed = played.passed[iteration, rank]
    start = 0.0 if iteration == 0 else float(played.passed[iteration - 1, rank, -1])
    gradients = np.flatnonzero((scene.program == EVENT) & (scene.program_argument < scene.num_events - 2))
    (called,) = np.flatnonzero((scene.program == EVENT) & (scene.program_argument == scene.num_events - 2))
    computes = np.flatnonzero(scene.program == COMPUTE)
    first_gradient = int(gradients[0]) if len(gradients) else int(called)
    # The compute before the first gradient is the first of backward.
    backward_from = int(computes[computes < first_gradient][-1]) - 1 if (computes < first_gradient).any() else 0
    backward_to = int(computes[computes < called][-1]) if (computes < called).any() else 0
    last = int(computes[-1]) if len(computes) else 0
    before = start
    for name, place in (("forward", backward_from), ("backward", backward_to)):
        end = float(passed[place]) if place >= 0 else start
        if np.isfinite(end):
            yield _span("compute", name, rank, _TRAINING, before, max(before, end), iteration)
            before = max(before, end)
    if np.isfinite(passed[last]) and last > called:
        yield _span("compute", "optimizer", rank, _TRAINING, float(passed[called]), float(passed[last]), iteration)
    for place in np.flatnonzero(scene.program == WAIT).tolist():
        begin = float(passed[place - 1]) if place else start
        if np.isfinite(passed[place]) and passed[place] > begin:
            yield _span("wait", "wait", rank, _TRAINING, begin, float(passed[place]), iteration)


def _meta(what: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": {"name": name}}


def _span(  # noqa: PLR0917 - the fields of an event
    kind: str, name: str, rank: int, thread: int, begin: float, end: float, iteration: int
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "pid": rank,
        "tid": thread,
        "ts": begin * 1e6,
        "dur": (end - begin) * 1e6,
        "args": {"iteration": iteration},
    }
