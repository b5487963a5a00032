"""A GAN: two models, two optimizers, one step of each in turn: `gan.py OUT [freezes]`.

With `freezes`, the generator has its turn first, and the critic is frozen meanwhile.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)).double()


def build_critic() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1)).double()


def batch(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(6, 3, generator=generator, dtype=torch.float64)


def batch_of_critic(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(6, 4, generator=generator, dtype=torch.float64)


def loss_of(model: nn.Module, given: torch.Tensor) -> torch.Tensor:
    return model(given).square().mean()


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, betas=(0.5, 0.999))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    # The critic is called twice between its buffers' broadcasts, as in most such scripts.
    generator, critic = DDP(build(), broadcast_buffers=False), DDP(build_critic())
    of_generator, of_critic = make_optimizer(generator.parameters()), make_optimizer(critic.parameters())
    data = torch.Generator().manual_seed(rank)
    criterion = nn.BCEWithLogitsLoss()
    if "freezes" in sys.argv:
        for _ in range(4):
            critic.requires_grad_(False)
            of_generator.zero_grad()
            criterion(critic(generator(batch(data))), torch.ones(6, 1).double()).backward()
            of_generator.step()
            critic.requires_grad_(True)
            with torch.no_grad():
                fake = generator(batch(data))
            of_critic.zero_grad()
            criterion(critic(fake), torch.zeros(6, 1).double()).backward()
            of_critic.step()
    for _ in range(4):
        real, noise = batch_of_critic(data) + 2, batch(data)
        ones, zeros = torch.ones(6, 1).double(), torch.zeros(6, 1).double()
        fake = generator(noise)
        of_critic.zero_grad()
        loss = criterion(critic(real), ones) + criterion(critic(fake.detach()), zeros)
        loss.backward()
        of_critic.step()
        of_generator.zero_grad()
        criterion(critic(fake), ones).backward()
        of_generator.step()
    torch.save({"generator": generator.state_dict(), "critic": critic.module.state_dict()}, f"{sys.argv[1]}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
