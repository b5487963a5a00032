"""Trains a multi-layer perceptron whose passes take a fixed time: `train.py LOG STEPS`.

The processor sleeps as long as a device would compute, so that four hosts fit on a small machine. The first rank writes
the number of each step to LOG.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 512
NUM_LAYERS = 6
LAYER_SECONDS = 0.01


class Layer(nn.Module):
    """A fully connected layer whose backward pass takes twice as long as its forward pass.

    It is no `nn.Linear`, whose gradients of a few examples travel as factors: no link would matter then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        time.sleep(LAYER_SECONDS)
        found = (values @ self.weight).tanh()
        if found.requires_grad:
            found.register_hook(lambda _: time.sleep(2 * LAYER_SECONDS))
        return found


def main() -> None:
    log, num_steps = Path(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Sequential(*(Layer() for _ in range(NUM_LAYERS))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(num_steps):
        optimizer.zero_grad()
        loss = model(torch.randn(4, WIDTH)).square().mean()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            log.write_text(str(step + 1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
