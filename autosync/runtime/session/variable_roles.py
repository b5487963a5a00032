"""Finds the variables that the engine updates, and returns finished gradients of all others to the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from autosync.plan.types import Plan
from autosync.runtime.engine.execution import Execution
from autosync.runtime.local.engine_updates import engine_updates


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableRoles:
    """The variables of a plan, by name, and what becomes of their gradients.

    The engine updates those in `engine`. The user's optimizer updates the others: gradients in `sparse` travel as rows,
    those in `dense` as they are, and those in `staged` are copied back from a buffer when they are finished.
    """

    parameters: Mapping[str, torch.nn.Parameter]
    engine: Mapping[str, torch.nn.Parameter]
    sparse: tuple[str, ...]
    dense: tuple[str, ...]
    staged: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan, parameters: Mapping[str, torch.nn.Parameter], execution: Execution) -> VariableRoles:
        """Return the roles of a plan's variables on the rank of an execution."""
        updated = engine_updates(plan).variables
        not_dense = execution.sparse.variables | updated
        return cls(
            parameters=parameters,
            engine={name: parameter for name, parameter in parameters.items() if name in updated},
            sparse=tuple(name for name in parameters if name in execution.sparse.variables - updated),
            dense=tuple(name for name in parameters if name not in not_dense),
            staged=tuple(name for name in execution.memory.staged_variables() if name not in not_dense),
        )
