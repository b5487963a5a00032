"""A usual DDP script in which each argument plants one cause of slow steps."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PLANTED = set(sys.argv[1:])
PAUSE_SECONDS = 0.03


class Pausing(torch.autograd.Function):
    """Computation that takes a while and no processor."""

    @staticmethod
    def forward(ctx, inputs, forward_seconds, backward_seconds):
        ctx.seconds = backward_seconds
        time.sleep(forward_seconds)
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None, None


class Model(nn.Module):
    def __init__(self, forward_seconds: float, backward_seconds: float) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 4)
        self.seconds = forward_seconds, backward_seconds
        self.register_buffer("running", torch.zeros(8))

    def forward(self, inputs):
        return self.last(Pausing.apply(self.first(inputs), *self.seconds))


def main() -> None:
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    slow = {word for word in PLANTED if rank == dist.get_world_size() - 1}
    pauses = [
        PAUSE_SECONDS * (10 if "slow-forward" in slow else 1),
        PAUSE_SECONDS * (10 if "slow-backward" in slow else 1),
    ]
    model = DistributedDataParallel(Model(*pauses), find_unused_parameters="unused" in PLANTED)
    if "own-hook" in PLANTED:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    micro = 3 if "accumulates" in PLANTED else 1
    for _ in range(100):
        if "slow-input" in PLANTED or "one-slow-input" in slow:
            time.sleep(10 * PAUSE_SECONDS)
        optimizer.zero_grad()
        for _ in range(micro):
            model(torch.ones(8, 16)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
