"""The engine's optimizer, which has the class, the groups and the current options of the user's optimizer."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from autosync.errors import OperationError
from autosync.runtime.local.joint_optimizer import kind_of, members_of
from autosync.runtime.local.optimizer_facts import (
    GroupOptions,
    OptimizerFacts,
    Options,
    StepScale,
    options_of,
)
from autosync.runtime.local.optimizer_state import Entries


class EngineOptimizer:
    """The common facts of all updates of one rank: the class, the groups, and the options of each iteration."""

    def __init__(
        self,
        kind: type[torch.optim.Optimizer],
        groups: Sequence[GroupOptions],
        group_of: Mapping[str, int],
        users: torch.optim.Optimizer | None,
    ) -> None:
        self.kind = kind
        self.groups = tuple(groups)
        self.group_of = group_of
        self.users = users
        self.entries = None if users is None else Entries(users)
        self.options = Options()
        self.changed_gradients: int | None = None
        """The last iteration in which an update has changed gradients, as that of some classes does."""

    @classmethod
    def of_user(cls, optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter]) -> EngineOptimizer:
        """Make one on a worker, from the user's optimizer. `parameters` that this does not hold are not updated."""
        group_of_id = {id(p): index for index, group in enumerate(optimizer.param_groups) for p in group["params"]}
        group_of = {name: group_of_id[id(p)] for name, p in parameters.items() if id(p) in group_of_id}
        return cls(kind_of(optimizer), options_of(optimizer), group_of, optimizer)

    @classmethod
    def of_facts(cls, facts: OptimizerFacts) -> EngineOptimizer:
        """Make one on a rank that only serves, which has no optimizer of the user's."""
        group_of = {name: index for index, group in enumerate(facts.groups) for name in group.names}
        return cls(facts.optimizer_class(), [group.options for group in facts.groups], group_of, None)

    def note(self, iteration: int, scale: StepScale, groups: Sequence[GroupOptions] | None = None) -> None:
        """Note an iteration's options at the call of `step()`: the user's current ones, or `groups` if given."""
        assert self.users is not None, "a rank that only serves is sent its options"
        self.options.put(iteration, options_of(self.users) if groups is None else groups, scale)

    def make(self, groups: Sequence[tuple[GroupOptions, list[torch.nn.Parameter]]]) -> torch.optim.Optimizer:
        """Make an optimizer of the user's class over other parameters."""
        kind: Any = self.kind
        try:
            made: torch.optim.Optimizer = kind([{**options, "params": params} for options, params in groups])
        except (TypeError, ValueError) as error:
            raise OperationError(
                f"{self.kind.__module__}.{self.kind.__qualname__} cannot be made anew from groups and their options "
                f"({error}): what the engine updates needs an optimizer that can"
            ) from error
        if self.users is not None:
            made.defaults.update(copy.deepcopy(members_of(self.users)[0].defaults))
        return made
