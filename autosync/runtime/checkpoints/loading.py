"""Reads the state that a worker resumes from, refuses a checkpoint that does not fit, and puts the state in place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from autosync.errors import OperationError
from autosync.runtime.checkpoints.collected import Collected
from autosync.runtime.checkpoints.folder import Saved
from autosync.runtime.checkpoints.state_kinds import first_difference, natures
from autosync.runtime.checkpoints.worker_state import (
    OF_EACH_WORKER,
    OWN_PARAMETER,
    class_name,
    entries,
    hashes,
)
from autosync.runtime.engine.execution import BEGIN_AS_PARAMETERS, Execution
from autosync.runtime.local.sparse_rows import Rows
from autosync.runtime.memory.kept_state import Path
from autosync.runtime.session.training import Training


def refuse_what_does_not_fit(training: Training, saved: Saved) -> None:
    """Refuse a checkpoint of another model, optimizer or way to train; the error gives both values."""
    model = training.bundle.model
    if saved.model_fingerprint != model.fingerprint():
        raise OperationError(
            f"the checkpoint is of model {saved.model} ({saved.model_fingerprint}); this is {model.name} "
            f"({model.fingerprint()})"
        )
    kind = class_name(training.optimizer)
    if saved.optimizer != kind:
        raise OperationError(f"the checkpoint is of optimizer {saved.optimizer}; this is {kind}")
    # A single worker keeps nothing but parameters and the optimizer's state.
    if 1 not in (training.plan.num_workers, saved.num_workers):
        difference = first_difference(saved.kept, natures(training.plan))
        if difference is not None:
            raise OperationError(f"the checkpoint does not fit this strategy: {difference}")
    for name, found in hashes(training).items():
        if saved.parameters.get(name) != found:
            raise OperationError(
                f"{name} is not what it was when the checkpoint was made (model.load_state_dict of what was saved with "
                "it comes first)"
            )


@dataclass(slots=True, kw_only=True)
class Loading:
    """All state from which a worker resumes. It is read, but not yet installed.

    `step` counts synchronised steps, `num_steps` those of the optimizer.
    `values` are pairs of a target tensor and its new values; `masters` are the values of the parameter copies that
    servers keep for themselves.
    """

    step: int
    num_steps: int
    optimizer: dict[str, Any]
    values: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    rows: dict[Path, Rows | None] = field(default_factory=dict)
    masters: dict[str, torch.Tensor] = field(default_factory=dict)


def prepare(training: Training, collected: Collected, saved: Saved) -> Loading:
    """Read all state that a worker needs; refuse a checkpoint that lacks some of it, before anything has changed."""
    loading = Loading(step=saved.step, num_steps=saved.num_steps, optimizer=_optimizer_state(training, collected))
    num_ranks = training.plan.num_workers
    for name, parameter in training.parameters.items():
        if collected.has(OWN_PARAMETER, name):
            value = collected.own(OWN_PARAMETER, name, parameter, rank=training.rank, num_ranks=num_ranks)
            loading.values.append((parameter.detach(), value))
        if collected.has("master", name):
            loading.masters[name] = collected.whole("master", name, parameter)
            if num_ranks == 1:
                # On a single worker nothing is late: parameters that were on their way have arrived.
                loading.values.append((parameter.detach(), loading.masters[name]))
    if training.execution is not None:
        _prepare_kept(loading, training, training.execution, collected)
        _prepare_others(loading, training.execution, collected)
    return loading


def _prepare_kept(loading: Loading, training: Training, execution: Execution, collected: Collected) -> None:
    parameters, num_ranks = training.parameters, training.plan.num_workers
    wholes: dict[tuple[str, str], torch.Tensor] = {}
    for what, place, target in execution.kept(loading.step):
        key = (what, place.variable)
        like = parameters[place.variable].detach()
        if key not in wholes and collected.num_ranks == 1 and not collected.has(*key):
            wholes[key] = like if what.startswith(BEGIN_AS_PARAMETERS) else torch.zeros_like(like)
        elif key not in wholes and what in OF_EACH_WORKER:
            wholes[key] = collected.own(*key, like, rank=training.rank, num_ranks=num_ranks)
        elif key not in wholes:
            wholes[key] = collected.whole(*key, like)
        loading.values.append((target, place.read(wholes[key])))


def _prepare_others(loading: Loading, execution: Execution, collected: Collected) -> None:
    """Prepare the state that is not stored per element; only a plan that cuts variables in the same way can take it."""
    begins_anew = collected.num_ranks == 1
    for path, target in execution.kept_factors():
        if begins_anew and not collected.has_other(path):
            continue
        value = collected.other(path)
        if value.shape != target.shape:
            raise OperationError(f"{' '.join(path)} has shape {list(value.shape)}; here it is {list(target.shape)}")
        loading.values.append((target, value))
    for path in execution.paths_on_the_way(loading.step):
        rows = None
        if not begins_anew or collected.has_other((*path, "indices")):
            rows = Rows(collected.other((*path, "indices")), collected.other((*path, "values")))
        loading.rows[path] = rows


def _optimizer_state(training: Training, collected: Collected) -> dict[str, Any]:
    """Return the state of the optimizer for all variables, in the form of its `state_dict`."""
    names = training.names()
    theirs = [collected.words("names", number) for number in collected.named("names")]
    if [set(one) for one in theirs] != [set(one) for one in names]:
        differing = {name for one in theirs for name in one} ^ {name for one in names for name in one}
        what = f"{min(differing)} is in one and not in the other" if differing else "they are in other groups"
        raise OperationError(
            f"the checkpoint's optimizer has {sum(map(len, theirs))} parameters in {len(theirs)} groups, this one has "
            f"{sum(map(len, names))} in {len(names)}: {what}"
        )
    numbers = {name: number for number, name in enumerate(name for group in names for name in group)}
    found = entries(training, collected, numbers.keys())
    return {
        "state": {numbers[name]: entry for name, entry in found.items()},
        "param_groups": [
            {**collected.words("options", str(number)), "params": [numbers[name] for name in group]}
            for number, group in enumerate(names)
        ],
    }


def put_in_place(training: Training, loading: Loading) -> None:
    """Put the state that was read in place. No operation may be under way."""
    # The optimizer comes first: if it refuses its state, everything is still as it was.
    try:
        training.optimizer.load_state_dict(loading.optimizer)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise OperationError(f"the optimizer does not take the checkpoint's state: {error}") from error
    with torch.no_grad():
        for target, value in loading.values:
            target.copy_(value)
    if training.execution is not None:
        training.execution.put_rows(loading.step, loading.rows)
    if training.servers is not None:
        training.servers.go_on_from(loading.step, loading.masters)
