"""Regions of a plan as torch tensors: reading them into one flat buffer, writing them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from autosync.plan.types import Plan, Region


class RegionTensors:
    """The gradients and parameters of a model, seen as the regions of a plan."""

    def __init__(self, plan: Plan, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        self._plan = plan
        self._parameters = parameters

    def read(self, regions: Sequence[int]) -> torch.Tensor:
        """The regions one behind the other, in a buffer of its own."""
        return torch.cat([self._flat(self._plan.regions[index]) for index in regions])

    def write(self, regions: Sequence[int], buffer: torch.Tensor) -> None:
        """Put a buffer's numbers back to where `read` found them."""
        position = 0
        for index in regions:
            region = self._plan.regions[index]
            self._put(region, buffer[position : position + region.num_elements])
            position += region.num_elements

    def _part(self, region: Region) -> torch.Tensor:
        part = self._plan.parts[region.part]
        parameter = self._parameters[part.variable.name]
        if region.kind == "grad":
            if parameter.grad is None:
                # A parameter without a gradient this time counts as one whose gradient is zero.
                parameter.grad = torch.zeros_like(parameter)
            tensor = parameter.grad
        else:
            tensor = parameter.data
        return tensor.narrow(part.axis, part.begin, part.end - part.begin) if tensor.dim() else tensor

    def _flat(self, region: Region) -> torch.Tensor:
        return self._part(region).reshape(-1)[region.start : region.stop]

    def _put(self, region: Region, values: torch.Tensor) -> None:
        tensor = self._part(region)
        if tensor.is_contiguous():
            tensor.view(-1)[region.start : region.stop].copy_(values)
            return
        flat = tensor.reshape(-1)
        flat[region.start : region.stop] = values
        tensor.copy_(flat.view(tensor.shape))
