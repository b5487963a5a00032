"""Trains the same workload in one process without a plan, averaging all workers' gradients.

Exact plans must give the same parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autosync.plan.reference.optimizers import reference_optimizer
from autosync.plan.reference.work import clip_coefficient
from autosync.plan.reference.workload import Array, Workload


def single_process(
    workload: Workload,
    *,
    num_workers: int,
    num_steps: int,
    delays: Mapping[str, int] | None = None,
    shares: Sequence[int] = (),
) -> dict[str, Array]:
    """Return the parameters that the step after the last would use.

    `delays` gives the number of updates by which each variable's parameters are late. `shares` has the examples in
    each worker's batch, if these are not equally many.
    """
    delays = delays or {}
    counts = shares or (1,) * num_workers
    model = workload.model
    optimizer = reference_optimizer(model.optimizer)
    history = {variable.name: [workload.initial(variable)] for variable in model.variables}
    states = {v.name: (np.zeros(v.shape), np.zeros(v.shape)) for v in model.variables}
    for step in range(num_steps):
        gradients: dict[str, Array] = {}
        for variable in model.variables:
            versions = history[variable.name]
            used = _used(versions, delays.get(variable.name, 0))
            total = sum(
                count * workload.gradient(variable, rank, step, used).dense for rank, count in enumerate(counts)
            )
            gradients[variable.name] = np.asarray(total) / sum(counts)
        coefficient = 1.0
        if model.clip_norm is not None:
            total_squares = float(sum(np.sum(gradient**2) for gradient in gradients.values()))
            coefficient = clip_coefficient(total_squares, model.clip_norm)
        for variable in model.variables:
            value = history[variable.name][-1].copy()
            # At least one axis, so that an optimizer can update a scalar in place.
            state = tuple(np.atleast_1d(slot) for slot in states[variable.name])
            optimizer.update(
                np.atleast_1d(value),
                np.atleast_1d(gradients[variable.name] * coefficient),
                (state[0], state[1]),
                step + 1,
            )
            history[variable.name].append(value)
    return {name: _used(versions, delays.get(name, 0)) for name, versions in history.items()}


def _used(versions: Sequence[Array], delay: int) -> Array:
    return versions[max(0, len(versions) - 1 - delay)]
