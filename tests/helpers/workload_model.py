"""A torch model whose gradients are those of the reference's workload, to hold real training against the reference."""

from __future__ import annotations

import torch
from torch import nn

from autosync.plan.reference.optimizers import LEARNING_RATE
from autosync.plan.reference.workload import Workload
from autosync.specs.model import ModelSpec


class WorkloadModel(nn.Module):
    """One rank's model: called with the number of a step it gives a loss whose gradients are the workload's."""

    def __init__(self, workload: Workload, rank: int) -> None:
        super().__init__()
        self._workload = workload
        self._rank = rank
        for variable in workload.model.variables:
            initial = torch.from_numpy(workload.initial(variable)).to(getattr(torch, variable.dtype))
            self.register_parameter(variable.name, nn.Parameter(initial))

    def forward(self, step: int) -> torch.Tensor:
        """The sum of all parameters' products with their gradients, which are made from the values in use."""
        total = torch.zeros((), dtype=torch.float64, device=next(self.parameters()).device)
        for variable in self._workload.model.variables:
            parameter = self.get_parameter(variable.name)
            used = (parameter * 1.0).detach().double().cpu().numpy()
            gradient = self._workload.gradient(variable, self._rank, step, used).dense
            total = total + (parameter * torch.from_numpy(gradient).to(parameter.device)).sum()
        return total


def workload_optimizer(model: nn.Module, spec: ModelSpec) -> torch.optim.Optimizer:
    """The optimizer of torch's that the reference has for a model that is trained by SGD or Adam."""
    parameters = list(model.parameters())
    if spec.optimizer.name == "Adam":
        return torch.optim.Adam(parameters, lr=LEARNING_RATE, betas=(0.9, 0.99), eps=1e-3)
    assert spec.optimizer.name == "SGD", "the reference has no other"
    return torch.optim.SGD(parameters, lr=LEARNING_RATE)
