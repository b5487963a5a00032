"""What measured and computed profiles share: first batches of lazy modules, steps with touched rows, notes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from autosync.specs import task_run
from autosync.specs.profile.assemble import ProfiledStep
from autosync.specs.profile.graph import ParameterUses, distinct_rows
from autosync.specs.profile.recorder import Microstep, ModelStructure
from autosync.specs.task import Task

UPDATE_NOTE = "the update as a whole, split over modules by the elements that it changes"


def materialise(
    task: Task, model: nn.Module, generator: torch.Generator, place: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Run a first batch if the model has lazy modules, which learn their shapes from it."""
    if any(isinstance(parameter, nn.UninitializedParameter) for parameter in model.parameters()):
        batch = task_run.map_tensors(task_run.draw_batch(task, generator), place)
        task_run.compute_loss(task, model, batch)


def profiled_step(
    microsteps: list[Microstep], update_seconds: float, rows_of: Callable[[ParameterUses, str], torch.Tensor | int]
) -> ProfiledStep:
    """Return a step with the number of distinct rows that its microsteps touched together.

    Only variables that are used by embeddings alone have such a number.
    """
    touched: dict[str, int] = {}
    for name in {name for microstep in microsteps for name in microstep.uses}:
        uses = [microstep.uses[name] for microstep in microsteps if name in microstep.uses]
        if all(use.is_embedding for use in uses):
            found = [rows_of(use, name) for use in uses]
            known = [rows for rows in found if isinstance(rows, torch.Tensor)]
            bound = sum(rows for rows in found if isinstance(rows, int))
            touched[name] = bound + (int(torch.unique(torch.cat(known)).numel()) if known else 0)
    # Drop the ids, which would keep the tensors of every step alive.
    light = [_without_ids(microstep) for microstep in microsteps]
    return ProfiledStep(microsteps=tuple(light), update_seconds=update_seconds, touched_rows=touched)


def _without_ids(microstep: Microstep) -> Microstep:
    return replace(microstep, uses={name: replace(uses, ids=()) for name, uses in microstep.uses.items()})


def known_rows(uses: ParameterUses, _: str) -> torch.Tensor:
    """Return the distinct rows that embeddings looked up, from the values of their ids."""
    return distinct_rows(uses.ids)


def sparse_gradients(structure: ModelStructure) -> frozenset[str]:
    """Return the names of the parameters whose gradients are sparse tensors."""
    gradients = ((name, parameter.grad) for name, parameter in structure.parameters.items())
    return frozenset(name for name, gradient in gradients if gradient is not None and gradient.is_sparse)


def task_notes(task: Task, sparse: frozenset[str]) -> tuple[str, ...]:
    """Return what the times of a profile have of clipping and loss scaling."""
    notes = []
    if task.clip_norm is not None:
        within = "not in the times: sparse gradients cannot be clipped" if sparse else "counted with the update"
        notes.append(f"the gradient is clipped to norm {task.clip_norm:g} ({within})")
    if task.loss_scaling:
        notes.append("the loss is scaled in training and not in the profile")
    return tuple(notes)
