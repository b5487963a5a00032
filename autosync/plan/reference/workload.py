"""A workload for the reference: gradients that depend on the rank, the step and the parameters in use.

They depend on the parameters so that a value used too early or too late changes the result. Rows and factors are
random so that no two ranks send the same. Everything is drawn from a seed and can be drawn again in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from autosync.specs.model import ModelSpec, Variable

Array: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """One rank's gradient of one variable: dense, plus an embedding's rows or a linear variable's factors."""

    dense: Array
    rows: npt.NDArray[np.int64] | None = None
    factors: tuple[Array, Array] | None = None

    def scaled(self, weight: float) -> Gradient:
        """Return the gradient times a rank's weight."""
        factors = None if self.factors is None else (self.factors[0] * weight, self.factors[1])
        return replace(self, dense=self.dense * weight, factors=factors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The initial parameters and the gradients of a model, drawn from a seed."""

    model: ModelSpec
    seed: int = 0

    def initial(self, variable: Variable) -> Array:
        """Return the parameter before the first step, the same on all ranks."""
        return self._rng(variable, -1, -1).standard_normal(variable.shape)

    def gradient(self, variable: Variable, rank: int, step: int, value: Array) -> Gradient:
        """Return the rank's gradient in a step, given the parameter that its forward pass used."""
        rng = self._rng(variable, rank, step)
        if variable.kind == "embedding":
            return _embedding_gradient(variable, rng, value)
        if variable.kind == "linear" and variable.factor_rows:
            inputs = rng.standard_normal((variable.factor_rows, variable.shape[1])) / variable.factor_rows
            outputs = rng.standard_normal((variable.factor_rows, variable.shape[0])) + 0.1 * inputs @ value.T
            return Gradient(dense=outputs.T @ inputs, factors=(outputs, inputs))
        return Gradient(dense=rng.standard_normal(variable.shape) + 0.1 * value)

    def _rng(self, variable: Variable, rank: int, step: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, variable.ready, rank + 1, step + 1))


def _embedding_gradient(variable: Variable, rng: np.random.Generator, value: Array) -> Gradient:
    assert variable.touched_rows is not None, "embeddings say how many rows they touch"
    assert variable.max_touched_rows is not None, "embeddings say how many rows they touch"
    most = variable.max_touched_rows
    count = int(np.clip(rng.poisson(variable.touched_rows), min(1, most), most))
    rows = np.sort(rng.choice(variable.shape[0], size=count, replace=False)).astype(np.int64)
    dense = np.zeros(variable.shape)
    dense[rows] = rng.standard_normal((count, variable.shape[1])) + 0.1 * value[rows]
    return Gradient(dense=dense, rows=rows)
