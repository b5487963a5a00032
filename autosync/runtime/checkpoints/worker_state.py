"""Takes the state of one worker's training apart for saving, and rebuilds it from the states of all ranks."""

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
from autosync.runtime.memory.byte_views import as_bytes
from autosync.runtime.memory.kept_state import Held, Place
from autosync.runtime.session.training import Training

OWN_PARAMETER = "parameter"
"""The kind of state of a worker's own parameters, which it has between two periodic averages."""
OF_EACH_WORKER = frozenset({"residual", "velocity"})
"""The kinds of state that each worker has for itself; all other kinds are the same on every rank that has them."""


def class_name(optimizer: torch.optim.Optimizer) -> str:
    """Return the name of an optimizer's class, with its module if that is not torch's own."""
    kind = kind_of(optimizer)
    return kind.__name__ if kind.__module__.startswith("torch.optim") else f"{kind.__module__}.{kind.__qualname__}"


def hashes(training: Training) -> dict[str, str]:
    """Return a hash of each variable's values."""
    return {name: _hash(parameter.detach()) for name, parameter in training.parameters.items()}


def _hash(values: torch.Tensor) -> str:
    numbers = as_bytes(values.cpu())
    return hashlib.sha256(numbers.numpy().data).hexdigest()[:16]


# Saving.


def state_of_worker(training: Training, step: int) -> RankState:
    """Return the state of a worker after `step` steps. Only the first worker's includes what all workers share."""
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
    """Add this worker's share of the optimizer's state.

    `is_taken` decides what to add, by the variable's name and by whether all workers share its state. The state of
    variables that the engine updates comes from the engine, because the user's optimizer may have outdated values of
    it.
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


# Loading.


def entries(training: Training, collected: Collected, names: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the optimizer's states of whole variables for this worker; variables without a state are left out."""
    found = {}
    for name, parameter in training.optimized():
        if name in names:
            is_own = collected.has(OWN_PARAMETER, name)
            own = (training.rank, training.plan.num_workers) if is_own else None
            found[name] = collected.entry(name, parameter, own=own)
    return {name: entry for name, entry in found.items() if entry}
