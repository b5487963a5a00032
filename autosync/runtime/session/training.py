"""The objects that a session works with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from autosync.plan.types import Plan
from autosync.runtime.engine.execution import Execution
from autosync.runtime.serving.first_worker import Servers
from autosync.runtime.session.agreement import parameters_of
from autosync.runtime.wire.links import Links
from autosync.strategy.bundle import Bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The model of a session, and the objects that train it.

    `execution` is None under torch's reducer; `servers` is set on the first worker only, if there are any.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    bundle: Bundle
    plan: Plan
    links: Links
    execution: Execution | None = None
    servers: Servers | None = None

    @property
    def rank(self) -> int:
        return self.links.rank

    @property
    def parameters(self) -> Mapping[str, torch.nn.Parameter]:
        """The parameters of the plan's variables, by name."""
        return parameters_of(self.model, self.bundle)

    def names(self) -> list[list[str]]:
        """Return the names of the optimizer's parameters, by group; those outside the model are named by numbers."""
        known = {id(parameter): name for name, parameter in self.model.named_parameters()}
        return [
            [known.get(id(one), f"parameter {index} of group {number}") for index, one in enumerate(group["params"])]
            for number, group in enumerate(self.optimizer.param_groups)
        ]

    def optimized(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield the optimizer's parameters with their names."""
        for names, group in zip(self.names(), self.optimizer.param_groups, strict=True):
            yield from zip(names, group["params"], strict=True)
