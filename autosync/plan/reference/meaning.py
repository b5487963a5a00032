"""Computes what a strategy means directly, without a plan: every worker's copy of every part after some steps.

Tests compare plans with this meaning, which does not depend on the lowering. It covers the classes exact and stale;
the effect of codecs on gradients is not simulated.

A part is either shared (all workers apply the averaged gradient; under a stale server some updates late) or each
worker's own (periodic averaging). If the task clips, shared gradients are clipped by their common norm, and each
worker clips its own gradients by the norm of these.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autosync.plan.reference.optimizers import ReferenceOptimizer, State, reference_optimizer
from autosync.plan.reference.work import clip_coefficient, outer_step
from autosync.plan.reference.workload import Array, Workload
from autosync.strategy.parts import Part
from autosync.strategy.representation import Strategy, all_parts
from autosync.strategy.synchronisers.base import Synchroniser


def meaning(strategy: Strategy, workload: Workload, *, num_workers: int, num_steps: int) -> list[dict[str, Array]]:
    """Return each worker's parameters as the worker would use them in the step after the last."""
    model = workload.model
    synchronisers = {name: message.synchroniser for message in strategy.messages for name in message.parts}
    copies = [{v.name: workload.initial(v) for v in model.variables} for _ in range(num_workers)]
    optimizer = reference_optimizer(model.optimizer)
    shared: list[_Shared] = []
    own: list[_Own] = []
    for name, part in all_parts(strategy, model).items():
        initial = _window(part, copies[0]).reshape(-1).copy()
        synchroniser = synchronisers[name]
        if synchroniser.trains_apart:
            own.append(_Own(part, synchroniser, initial, optimizer, num_workers))
        else:
            shared.append(_Shared(part, synchroniser, initial, optimizer))
    for step in range(num_steps):
        gradients = [
            {v.name: workload.gradient(v, rank, step, copies[rank][v.name]).dense for v in model.variables}
            for rank in range(num_workers)
        ]
        _step_shared(shared, gradients, strategy.shares, step, model.clip_norm)
        for rank in range(num_workers):
            _step_own(own, gradients, rank, step, model.clip_norm)
        for drifting in own:
            drifting.meet(step)
        for rank, copy in enumerate(copies):
            followers: list[_Shared | _Own] = [*shared, *own]
            for one in followers:
                _window(one.part, copy)[...] = one.value(rank).reshape(one.part.shape)
    return copies


class _Shared:
    """A part that is equal on all workers. `versions` has its values after each update, the newest last."""

    def __init__(self, part: Part, synchroniser: Synchroniser, initial: Array, optimizer: ReferenceOptimizer) -> None:
        self.part = part
        self.delay = synchroniser.lag
        self.versions = [initial]
        self.optimizer = optimizer
        self.state: State = (np.zeros(len(initial)), np.zeros(len(initial)))

    def mean(self, gradients: Sequence[dict[str, Array]], shares: Sequence[int]) -> Array:
        """Return the gradient of the mean over all examples of the global batch."""
        counts = shares or (1,) * len(gradients)
        pairs = zip(counts, gradients, strict=True)
        return np.asarray(sum(count * _window(self.part, one).reshape(-1) for count, one in pairs) / sum(counts))

    def update(self, gradient: Array, step: int) -> None:
        new = self.versions[-1].copy()
        self.optimizer.update(new, gradient, self.state, step + 1)
        self.versions.append(new)

    def value(self, rank: int) -> Array:  # noqa: ARG002 - the same for all
        return self.versions[max(0, len(self.versions) - 1 - self.delay)]


class _Own:
    """A part with a separate copy on each worker; `meet` averages the copies every few steps."""

    def __init__(
        self, part: Part, synchroniser: Synchroniser, initial: Array, optimizer: ReferenceOptimizer, num_workers: int
    ) -> None:
        self.part = part
        self.synchroniser = synchroniser
        self.optimizer = optimizer
        self.values = [initial.copy() for _ in range(num_workers)]
        self.states: list[State] = [(np.zeros(len(initial)), np.zeros(len(initial))) for _ in range(num_workers)]
        self.anchor = initial.copy()
        self.momentum = np.zeros(len(initial))

    def update(self, gradient: Array, rank: int, step: int) -> None:
        self.optimizer.update(self.values[rank], gradient, self.states[rank], step + 1)

    def meet(self, step: int) -> None:
        if (step + 1) % self.synchroniser.period:
            return
        average = np.asarray(sum(self.values) / len(self.values))
        outer = self.synchroniser.outer_optimizer
        if outer is not None:
            outer_step(average, self.anchor, self.momentum, outer)
        self.values = [average.copy() for _ in self.values]

    def value(self, rank: int) -> Array:
        return self.values[rank]


def _step_shared(
    shared: Sequence[_Shared],
    gradients: Sequence[dict[str, Array]],
    shares: Sequence[int],
    step: int,
    clip_norm: float | None,
) -> None:
    means = [one.mean(gradients, shares) for one in shared]
    coefficient = _coefficient(means, clip_norm)
    for one, mean in zip(shared, means, strict=True):
        one.update(mean * coefficient, step)


def _step_own(
    own: Sequence[_Own], gradients: Sequence[dict[str, Array]], rank: int, step: int, clip_norm: float | None
) -> None:
    mine = [_window(one.part, gradients[rank]).reshape(-1) for one in own]
    coefficient = _coefficient(mine, clip_norm)
    for one, gradient in zip(own, mine, strict=True):
        one.update(gradient * coefficient, rank, step)


def _coefficient(gradients: Sequence[Array], clip_norm: float | None) -> float:
    if clip_norm is None:
        return 1.0
    return clip_coefficient(float(sum(np.sum(gradient**2) for gradient in gradients)), clip_norm)


def _window(part: Part, values: dict[str, Array]) -> Array:
    """Return a view of the part's elements in its variable."""
    value = values[part.variable.name]
    if not value.shape:
        return value
    return value[(slice(None),) * part.axis + (slice(part.begin, part.end),)]
