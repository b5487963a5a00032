"""Times the passes of a task with batches of several sizes, for shares of the batch.

A pass with half the examples takes more than half the time where each layer has a fixed cost, as on a GPU. So the times
of shares come from measurements at several sizes. Sizes are measured in turn, so that a slow moment of the machine hits
all of them alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from autosync.errors import InputError, TaskError
from autosync.specs import task_run
from autosync.specs.batch_times import LEAST_SIZES, BatchTime
from autosync.specs.examples import examples_of, join_batches, num_examples
from autosync.specs.model import ModelSpec, Timeline
from autosync.specs.profile.clock import Clock
from autosync.specs.task import Task

NUM_ROUNDS = 9
FEWEST_ROUNDS = 3
WARM_UP_ROUNDS = 2
MOST_SECONDS = 20.0
"""The time that the passes of microbatches may take; fewer rounds are made of long ones."""


def check_sizes(task: Task, sizes: Sequence[int]) -> None:
    """Refuse sizes that tell too little about other ones."""
    if len(set(sizes)) < LEAST_SIZES or min(sizes) < 1:
        what = f"batch sizes {', '.join(map(str, sizes))}"
        raise InputError(what, rule=f"{LEAST_SIZES} different numbers of examples or more, each at least 1")
    if not min(sizes) <= task.batch_size <= max(sizes):
        what = f"batch sizes from {min(sizes)} to {max(sizes)}"
        raise InputError(what, rule=f"the task's own batch_size, {task.batch_size}, is among or between them")


def microbatch_sizes(batch_size: int) -> tuple[int, ...]:
    """Return the sizes from which the times of microbatches are told: the batch, parts of it, and a single example."""
    found = {1, max(1, batch_size // 4), max(1, batch_size // 2), batch_size}
    while len(found) < LEAST_SIZES:
        found.add(2 * max(found))
    return tuple(sorted(found))


def with_microbatches(
    spec: ModelSpec, times_of_sizes: Callable[[Sequence[int], int], tuple[BatchTime, ...]]
) -> Timeline:
    """Return a model's timeline with the times of microbatches; without cuts if the model cannot pass any.

    `times_of_sizes` times passes in some rounds. They are fewer if a step takes long.
    """
    sizes = microbatch_sizes(spec.batch_size)
    seconds = spec.step_seconds * sum(sizes) / spec.batch_size
    fitting = int(MOST_SECONDS / seconds) if seconds > 0 else NUM_ROUNDS
    try:
        times = times_of_sizes(sizes, min(max(fitting - WARM_UP_ROUNDS, FEWEST_ROUNDS), NUM_ROUNDS))
    except TaskError as error:
        return replace(spec.timeline, cuts=(), uncut=f"a microbatch cannot pass: {error.problems[0].what}")
    return replace(spec.timeline, sizes=times)


def time_sizes(
    task: Task,
    model: nn.Module,
    sizes: Sequence[int],
    *,
    draw: Callable[[], Any],
    place: Callable[[torch.Tensor], torch.Tensor],
    clock: Clock,
    num_rounds: int = NUM_ROUNDS,
    warm_up_rounds: int = WARM_UP_ROUNDS,
) -> tuple[BatchTime, ...]:
    """Return the median time of a forward and a backward pass with batches of each size.

    `draw` returns a batch of the task's own size, and `place` moves a tensor to where the model is.
    """
    ordered = sorted(set(sizes))
    batches = {size: task_run.map_tensors(_batch_of(size, draw), place) for size in ordered}
    taken: dict[int, list[float]] = {size: [] for size in ordered}
    for number in range(warm_up_rounds + num_rounds):
        for size, batch in batches.items():
            model.zero_grad(set_to_none=True)
            start = clock.mark()
            task_run.run_backward(task, task_run.compute_loss(task, model, batch))
            seconds = clock.seconds([start, clock.mark()])[0]
            if number >= warm_up_rounds:
                taken[size].append(seconds)
    return tuple(BatchTime(num_examples=size, seconds=statistics.median(taken[size])) for size in ordered)


def _batch_of(size: int, draw: Callable[[], Any]) -> Any:
    """Return a batch of so many examples, drawn as the task's batches are."""
    drawn = [draw()]
    while sum(map(num_examples, drawn)) < size:
        drawn.append(draw())
    return examples_of(join_batches(drawn), 0, size)
