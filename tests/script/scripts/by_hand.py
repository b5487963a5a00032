"""Updates by hand, without an optimizer, as tutorials do; gradients of inputs are taken between."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def batch(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(4, 5, generator=generator, dtype=torch.float64)


def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return (model(inputs) - inputs[:, :2]).square().mean()


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(build())
    data = torch.Generator().manual_seed(rank)
    for _ in range(4):
        inputs = batch(data).requires_grad_()
        loss = loss_of(model, inputs)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.1 * parameter.grad)
        model.zero_grad()
        loss_of(model, inputs.detach() + 0.1 * inputs.grad.sign()).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.1 * parameter.grad)
                parameter.grad = None
    torch.save({"model": model.state_dict()}, f"{sys.argv[1]}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
