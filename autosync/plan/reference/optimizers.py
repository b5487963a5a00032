"""The optimizers of the reference: SGD, momentum and Adam, which are elementwise, and one that is not.

A model's optimizer is represented by the one with the same properties: the number of state slots, and whether it is
elementwise. An optimizer that takes sparse gradients and keeps state is lazy: like SparseAdam, it does not change
elements without a gradient.
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
"""The two state slots of a parameter, zero at first."""

Rule: TypeAlias = Callable[[Array, Array, State, int], Array]
"""(parameter, gradient, state, step counted from 1) -> change of the parameter; updates the state in place."""


@dataclass(frozen=True, slots=True)
class ReferenceOptimizer:
    """An update rule and how it is applied. If `lazy`, only elements with a gradient other than 0 are updated."""

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
    """Return the reference optimizer that represents a model's optimizer."""
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
