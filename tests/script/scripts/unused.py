"""A changing graph: layers that some ranks leave out in some steps, and two optimizers of one model."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.head = nn.Linear(6, 2)
        self.auxiliary = nn.Linear(6, 2)
        self.step = 0

    def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.first(inputs).tanh()
        left_out = self.step % 3 if self.training and self.step else -1
        for number, block in enumerate(self.blocks):
            if number != left_out:
                hidden = hidden + block(hidden).tanh()
        return {"output": self.head(hidden), "auxiliary": self.auxiliary(hidden)}


def build() -> nn.Module:
    return Net().double()


def batch(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(4, 5, generator=generator, dtype=torch.float64)


def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return _error(model(inputs), inputs, has_auxiliary=True)


def _error(outputs: dict[str, torch.Tensor], inputs: torch.Tensor, *, has_auxiliary: bool) -> torch.Tensor:
    error = (outputs["output"] - inputs[:, :2]).square().mean()
    # In some steps the loss leaves out an output.
    return error + 0.1 * outputs["auxiliary"].square().mean() if has_auxiliary else error


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(build(), find_unused_parameters=True)
    weights = make_optimizer([one for one in model.parameters() if one.ndim > 1])
    biases = make_optimizer([one for one in model.parameters() if one.ndim == 1])
    data = torch.Generator().manual_seed(rank)
    for step in range(7):
        # All ranks leave out the same layer in some steps, and each another one in the others.
        model.module.step = step + (rank if step > 3 else 0)
        inputs = batch(data)
        loss = _error(model(inputs), inputs, has_auxiliary=(step + rank) % 4 != 3)
        loss.backward()
        for optimizer in (weights, biases):
            optimizer.step()
            # Momentum moves a weight whose gradient is zero, and leaves a bias alone that has none.
            optimizer.zero_grad(set_to_none=optimizer is biases)
    torch.save({"model": model.state_dict()}, f"{sys.argv[1]}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
