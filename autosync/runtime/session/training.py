"""What a session trains, and with what."""

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
    """What a session trains, and with what.

    `execution` is None under torch's reducer; `servers` are there on the first worker alone, if there are any.
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
        """The plan's variables, by name."""
        return parameters_of(self.model, self.bundle)

    def names(self) -> list[list[str]]:
        """The names of the optimizer's parameters, by group; those that are none of the model's are counted."""
        known = {id(parameter): name for name, parameter in self.model.named_parameters()}
        return [
            [known.get(id(one), f"parameter {index} of group {number}") for index, one in enumerate(group["params"])]
            for number, group in enumerate(self.optimizer.param_groups)
        ]

    def optimized(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """The optimizer's parameters by name."""
        for names, group in zip(self.names(), self.optimizer.param_groups, strict=True):
            yield from zip(names, group["params"], strict=True)
