"""Optimizers for the reference: plain SGD, momentum and Adam by element, and one that is not elementwise.

Which one stands for a model's optimizer follows from its facts: the number of state slots, whether it is
elementwise, and whether it takes sparse gradients and keeps state (then it is lazy and leaves alone what has no
gradient, as SparseAdam does).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from autosync.plan.reference.workload import Array
from autosync.specs.model import OptimizerSpec

LEARNING_RATE = 0.05

State: TypeAlias = tuple[Array, Array]
"""Two slots a parameter, zero at first."""

Rule: TypeAlias = Callable[[Array, Array, State, int], Array]
"""(parameter, gradient, state, step from 1) -> change of the parameter; updates the state in place."""


@dataclass(frozen=True, slots=True)
class ReferenceOptimizer:
    """A rule and how it is applied."""

    rule: Rule
    elementwise: bool
    lazy: bool

    def update(self, value: Array, gradient: Array, state: State, step: int) -> None:
        """Update a parameter (or a piece of it) and its state in place."""
        if not self.lazy:
            value += self.rule(value, gradient, state, step)
            return
        touched = gradient != 0
        slots = (state[0][touched], state[1][touched])
        value[touched] += self.rule(value[touched], gradient[touched], slots, step)
        state[0][touched], state[1][touched] = slots


def reference_optimizer(spec: OptimizerSpec) -> ReferenceOptimizer:
    """The optimizer that stands for a model's."""
    if not spec.elementwise:
        return ReferenceOptimizer(_normalised, elementwise=False, lazy=False)
    rule = (_sgd, _momentum, _adam)[min(spec.state_slots, 2)]
    return ReferenceOptimizer(rule, elementwise=True, lazy=spec.sparse and spec.state_slots > 0)


def _sgd(value: Array, gradient: Array, state: State, step: int) -> Array:  # noqa: ARG001 - every rule has this form
    return -LEARNING_RATE * gradient


def _momentum(value: Array, gradient: Array, state: State, step: int) -> Array:  # noqa: ARG001 - as above
    state[0][...] = 0.9 * state[0] + gradient
    return -LEARNING_RATE * state[0]


def _adam(value: Array, gradient: Array, state: State, step: int) -> Array:  # noqa: ARG001 - as above
    state[0][...] = 0.9 * state[0] + 0.1 * gradient
    state[1][...] = 0.99 * state[1] + 0.01 * gradient**2
    first, second = state[0] / (1 - 0.9**step), state[1] / (1 - 0.99**step)
    return -LEARNING_RATE * first / (np.sqrt(second) + 1e-3)


def _normalised(value: Array, gradient: Array, state: State, step: int) -> Array:  # noqa: ARG001 - as above
    return np.asarray(-LEARNING_RATE * gradient / (np.sqrt(np.sum(gradient**2)) + 1e-3), dtype=np.float64)
