"""The outer optimizer of periodic averaging: a Nesterov step on the change of the parameters since the last average."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from autosync.plan.types import Local, Plan
from autosync.runtime.memory.kept_state import Held, Place
from autosync.runtime.memory.regions import Memory
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer


class Outer:
    """One rank's outer steps and their momentum. All ranks make the same steps, because the averages are the same."""

    def __init__(self, plan: Plan, memory: Memory, *, rank: int) -> None:
        self._plan = plan
        self._memory = memory
        self._momenta: dict[tuple[int, ...], torch.Tensor] = {}
        for operation in plan.operations:
            is_mine = any(rank in group for group in operation.groups)
            if is_mine and isinstance(operation, Local) and operation.kind == "outer":
                params = _params(operation)
                part = plan.parts[plan.regions[params[0]].part]
                num_elements = sum(plan.regions[index].num_elements for index in params)
                dtype = getattr(torch, part.variable.dtype)
                self._momenta[params] = torch.zeros(num_elements, dtype=dtype, device=memory.device)

    def kept(self) -> Iterator[Held]:
        """Yield the momentum of each region. The tensors are not copies."""
        for params, momentum in self._momenta.items():
            regions = [self._plan.regions[index] for index in params]
            pieces = torch.split(momentum, [one.num_elements for one in regions])
            for region, values in zip(regions, pieces, strict=True):
                yield Held("momentum", Place.of(self._plan.parts[region.part], region.start, region.stop), values)

    def step(self, operation: Local) -> None:
        """Step from the anchor by the parameters' change since the last average; then both have the same values."""
        settings = operation.settings
        assert isinstance(settings, OuterOptimizer), "an outer step has its settings"
        params = _params(operation)
        momentum = self._momenta[params]
        self._memory.load(params)
        param, anchor = self._memory.view(params), self._memory.view(operation.inputs[len(params) :])
        change = anchor - param
        momentum.mul_(settings.momentum).add_(change)
        change.add_(momentum, alpha=settings.momentum)
        anchor.sub_(change, alpha=settings.learning_rate)
        param.copy_(anchor)
        self._memory.store(params)


def _params(operation: Local) -> tuple[int, ...]:
    """Return the parameters' regions: the first half of the inputs. The other half are the anchors' regions."""
    return operation.inputs[: len(operation.inputs) // 2]
