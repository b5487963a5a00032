"""Regions of a plan as torch tensors: reading them into one flat buffer, writing them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from autosync.plan.types import Plan, Region


class RegionTensors:
    """The gradients and parameters of a model, seen as the regions of a plan.

    All writing goes past autograd's version counters: a gradient's version tells of the user's changes alone.
    """

    def __init__(self, plan: Plan, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        self._plan = plan
        self._parameters = parameters

    def read(self, regions: Sequence[int]) -> torch.Tensor:
        """The regions one behind the other, in a buffer of its own."""
        found = [self._plan.regions[index] for index in regions]
        return torch.cat([self.cut(self._tensor(region), region) for region in found])

    def write(self, regions: Sequence[int], buffer: torch.Tensor) -> None:
        """Put a buffer's numbers back to where `read` found them."""
        position = 0
        for index in regions:
            region = self._plan.regions[index]
            self._put(region, buffer[position : position + region.num_elements])
            position += region.num_elements

    def cut(self, tensor: torch.Tensor, region: Region) -> torch.Tensor:
        """A region's elements of any tensor of the variable's shape, in the plan's order: row by row of the part."""
        return self._part(tensor, region).reshape(-1)[region.start : region.stop]

    def _tensor(self, region: Region) -> torch.Tensor:
        parameter = self._parameters[self._plan.parts[region.part].variable.name]
        if region.kind == "param":
            return parameter.data
        assert region.kind == "grad", "other regions are refused before"
        assert parameter.grad is not None, "a step without all gradients is refused before"
        return parameter.grad.data

    def _part(self, tensor: torch.Tensor, region: Region) -> torch.Tensor:
        part = self._plan.parts[region.part]
        return tensor.narrow(part.axis, part.begin, part.end - part.begin) if tensor.dim() else tensor

    def _put(self, region: Region, values: torch.Tensor) -> None:
        part = self._part(self._tensor(region), region)
        if part.is_contiguous():
            part.view(-1)[region.start : region.stop].copy_(values)
            return
        flat = part.reshape(-1)
        flat[region.start : region.stop] = values
        part.copy_(flat.view(part.shape))
