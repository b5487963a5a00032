"""Compares a task with the model spec that was made of it: a script or a task file may have changed since."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from autosync.specs.model import ModelSpec
from autosync.specs.task import Task


class ChangedFact(NamedTuple):
    """A fact of a task, as it is now and as it was."""

    name: str
    now: object
    then: object


def changed_facts(task: Task, model: ModelSpec) -> Iterator[ChangedFact]:
    """Yield what a task says now and did not say when the model was profiled: batches, clipping, scaling, weights."""
    facts: dict[str, tuple[object, object]] = {
        "batch_size": (task.batch_size, model.batch_size),
        "accumulation_steps": (task.accumulation_steps, model.accumulation_steps),
        "clip_norm": (task.clip_norm, model.clip_norm),
        "loss_scaling": (task.loss_scaling, model.loss_scaling),
        "weight": (_presence(given=task.weight is not None), _presence(given=model.weighs)),
    }
    for name, (now, then) in facts.items():
        if now != then:
            yield ChangedFact(name, now, then)


def _presence(*, given: bool) -> str:
    return "given" if given else "not given"
