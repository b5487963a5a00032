"""One worker's training taken to pieces, to be saved, and put together again from what all ranks had."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from typing import Any

import torch

from autosync.errors import OperationError
from autosync.runtime.checkpoints.collected import Collected
from autosync.runtime.checkpoints.rank_state import RankState
from autosync.runtime.checkpoints.state_kinds import own_variables, variables_kept_apart
from autosync.runtime.engine.execution import Execution
from autosync.runtime.local.engine_updates import engine_updates
from autosync.runtime.local.joint_optimizer import kind_of
from autosync.runtime.local.optimizer_facts import options_of
from autosync.runtime.local.optimizer_state import entry_of
from autosync.runtime.memory.kept_state import Held, Place
from autosync.runtime.session.training import Training

OWN_PARAMETER = "parameter"
"""What a worker's own parameters are called, which it has between two averages."""
OF_EACH_WORKER = frozenset({"residual", "velocity"})
"""What each worker keeps for itself; all else is the same on all that have it."""


def class_name(optimizer: torch.optim.Optimizer) -> str:
    """An optimizer's class, with its module where that is not torch's own."""
    kind = kind_of(optimizer)
    return kind.__name__ if kind.__module__.startswith("torch.optim") else f"{kind.__module__}.{kind.__qualname__}"


def hashes(training: Training) -> dict[str, str]:
    """A hash of each variable's values."""
    return {name: _hash(parameter.detach()) for name, parameter in training.parameters.items()}


def _hash(values: torch.Tensor) -> str:
    numbers = values.cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(numbers.numpy().data).hexdigest()[:16]


# What there is to save.


def state_of_worker(training: Training, step: int) -> RankState:
    """What a worker has to save after so many steps. What all workers have alike the first one saves."""
    state = RankState()
    own, is_first = own_variables(training.plan), training.rank == 0
    add_optimizer(state, training, lambda name, is_shared: is_first or name in own or not is_shared)
    if is_first:
        for number, (options, names) in enumerate(zip(options_of(training.optimizer), training.names(), strict=True)):
            state.add_words("options", str(number), options)
            state.add_words("names", str(number), names)
    if training.execution is not None:
        _add_kept(state, training.execution, step, is_first=is_first)
    for name in sorted(own):
        parameter = training.parameters[name].detach()
        state.elements.append(Held(OWN_PARAMETER, Place.whole(name, parameter.shape), parameter.reshape(-1)))
    return state


def _add_kept(state: RankState, execution: Execution, step: int, *, is_first: bool) -> None:
    for held in execution.kept(step):
        if is_first or held.what in OF_EACH_WORKER or held.what == "master":
            state.elements.append(held)
    if is_first:
        state.others |= dict(execution.kept_factors())
        for path, rows in execution.rows_on_the_way(step):
            state.others[*path, "indices"], state.others[*path, "values"] = rows


def add_optimizer(state: RankState, training: Training, is_taken: Callable[[str, bool], bool]) -> None:
    """Add what this worker has of the optimizer's state.

    `is_taken` is asked by variable, and whether all workers have the same of it. What the engine updates it has for
    itself: the user's optimizer may have of that what is no longer true.
    """
    engines: frozenset[str] = frozenset()
    if training.execution is not None:
        updates = engine_updates(training.plan)
        mixed = own_variables(training.plan) & variables_kept_apart(training.plan, updates.operations)
        if mixed:
            raise OperationError(
                f"one part of {min(mixed)} is periodically averaged and another updated in shards or at a server: its "
                "state is each worker's own and yet whole on none, and cannot be told"
            )
        engines = updates.variables
        training.execution.bind_states()
        for place, is_shared, piece in training.execution.states():
            if is_taken(place.variable, is_shared):
                state.add_optimizer(place.variable, place, piece.shape, piece.entry)
    is_shared = True
    for name, parameter in training.optimized():
        entry = entry_of(training.optimizer, parameter)
        if entry and name not in engines and is_taken(name, is_shared):
            state.add_optimizer(name, Place.whole(name, parameter.shape), parameter.shape, entry)


# What there is to go on with.


def entries(training: Training, collected: Collected, names: Collection[str]) -> dict[str, dict[str, Any]]:
    """The optimizer's states of whole variables, as this worker is to have them; nothing of those that have none."""
    found = {}
    for name, parameter in training.optimized():
        if name in names:
            is_own = collected.has(OWN_PARAMETER, name)
            own = (training.rank, training.plan.num_workers) if is_own else None
            found[name] = collected.entry(name, parameter, own=own)
    return {name: entry for name, entry in found.items() if entry}
