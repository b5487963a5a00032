"""Trains a small DCGAN: two models in DDP, with an optimizer each, in alternation."""

import argparse
import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

NOISE, FEATURES, BATCH_SIZE = 16, 12, 16


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(NOISE, 4 * FEATURES, 4, 1, 0, bias=False),
            nn.BatchNorm2d(4 * FEATURES),
            nn.ReLU(True),
            nn.ConvTranspose2d(4 * FEATURES, 2 * FEATURES, 4, 2, 1, bias=False),
            nn.BatchNorm2d(2 * FEATURES),
            nn.ReLU(True),
            nn.ConvTranspose2d(2 * FEATURES, 3, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return self.main(noise)


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(3, FEATURES, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(FEATURES, 2 * FEATURES, 4, 2, 1, bias=False),
            nn.BatchNorm2d(2 * FEATURES),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(2 * FEATURES, 1, 4, 1, 0, bias=False),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.main(images).view(-1)


def weights_init(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=2e-4, betas=(0.5, 0.999))


def real_images(generator: torch.Generator) -> torch.Tensor:
    shades = torch.rand(BATCH_SIZE, 3, 1, 1, generator=generator)
    return (shades + 0.1 * torch.randn(BATCH_SIZE, 3, 16, 16, generator=generator)).clamp(-1, 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--resume")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(999)
    net_g, net_d = Generator(), Discriminator()
    net_g.apply(weights_init)
    net_d.apply(weights_init)
    net_g, net_d = DDP(net_g), DDP(net_d)
    optimizer_g, optimizer_d = make_optimizer(net_g.parameters()), make_optimizer(net_d.parameters())
    criterion = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(BATCH_SIZE), torch.zeros(BATCH_SIZE)

    start = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu")
        net_g.load_state_dict(checkpoint["net_g"])
        net_d.load_state_dict(checkpoint["net_d"])
        optimizer_g.load_state_dict(checkpoint["optimizer_g"])
        optimizer_d.load_state_dict(checkpoint["optimizer_d"])
        start = checkpoint["step"]

    args.output.mkdir(parents=True, exist_ok=True)
    for step in range(start + 1, args.steps + 1):
        data = torch.Generator().manual_seed(2 * step + rank)
        # The discriminator: one batch of real images, one of fakes.
        net_d.zero_grad()
        loss_real = criterion(net_d(real_images(data)), ones)
        loss_real.backward()
        fakes = net_g(torch.randn(BATCH_SIZE, NOISE, 1, 1, generator=data))
        loss_fake = criterion(net_d(fakes.detach()), zeros)
        loss_fake.backward()
        optimizer_d.step()

        # The generator: fakes should be taken for real.
        net_g.zero_grad()
        loss_g = criterion(net_d(fakes), ones)
        loss_g.backward()
        optimizer_g.step()

        if rank == 0:
            with (args.output / "log.jsonl").open("a") as log:
                losses = {"loss_d": (loss_real + loss_fake).item(), "loss_g": loss_g.item()}
                log.write(json.dumps({"step": step, **losses}) + "\n")
        if rank == 0 and step == args.steps // 2:
            checkpoint = {
                "net_g": net_g.state_dict(),
                "net_d": net_d.state_dict(),
                "optimizer_g": optimizer_g.state_dict(),
                "optimizer_d": optimizer_d.state_dict(),
                "step": step,
            }
            torch.save(checkpoint, args.output / "checkpoint.pt")

    if rank == 0:
        torch.save({"net_g": net_g.state_dict(), "net_d": net_d.state_dict()}, args.output / "weights.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
