"""A task that has changed since its model was profiled is told fact by fact."""

from dataclasses import replace

import torch
from torch import nn

from autosync.specs.profile.run import profile
from autosync.specs.task import Task
from autosync.specs.task_changes import ChangedFact, changed_facts

TASK = Task(
    name="small",
    model=lambda: nn.Linear(4, 1),
    batch=lambda generator: torch.randn(6, 4, generator=generator),
    loss=lambda model, x: model(x).square().mean(),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    batch_size=6,
)


def test_each_changed_fact_is_told() -> None:
    model = profile(TASK, times="computed", steps=1)
    assert list(changed_facts(TASK, model)) == []
    changed = replace(TASK, batch_size=3, clip_norm=1.0, weight=len)
    assert list(changed_facts(changed, model)) == [
        ChangedFact("batch_size", 3, 6),
        ChangedFact("clip_norm", 1.0, None),
        ChangedFact("weight", "given", "not given"),
    ]
    accumulates = replace(TASK, accumulation_steps=2)
    assert list(changed_facts(accumulates, model)) == [ChangedFact("accumulation_steps", 2, 1)]
