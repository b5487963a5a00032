"""Compares a task with the one for which its bundle was made: plans clip, weigh and accumulate as that one said."""

from __future__ import annotations

import torch

from autosync.errors import OperationError
from autosync.specs.model import OptimizerSpec
from autosync.specs.task import Task
from autosync.specs.task_changes import ChangedFact, changed_facts
from autosync.strategy.bundle import Bundle


def refuse_changed_task(task: Task, optimizer: torch.optim.Optimizer, bundle: Bundle) -> None:
    """Refuse a task that has changed since its bundle was made."""
    if isinstance(getattr(optimizer, "stands_for", None), OptimizerSpec):
        # A replay is made from the bundle's model, and its task leaves out what takes no time of its own.
        return
    updates = ChangedFact("optimizer", type(optimizer).__name__, bundle.model.optimizer.name)
    found = [*changed_facts(task, bundle.model), *([updates] if updates.now != updates.then else [])]
    for name, now, then in found:
        raise OperationError(
            f"the task's {name} is {now}; the bundle was made for a task whose {name} is {then} (tune the task as it "
            "is now)"
        )
