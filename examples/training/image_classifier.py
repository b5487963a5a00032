"""Trains a small convolutional network to recognise drawn shapes, on all ranks that torchrun starts.

    torchrun --nproc-per-node 2 examples/training/image_classifier.py

The script is written as for DistributedDataParallel: a sampler distributes the images to the ranks, SGD has momentum,
and the learning rate falls from step to step. To train with a strategy, tune one and pass its bundle:

    autosync tune examples/training/image_classifier.py --cluster configs/clusters/local-2.yaml -o best.yaml
    torchrun --nproc-per-node 2 examples/training/image_classifier.py --bundle best.yaml

`tune` reads `task()`; training does not use it.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import autosync

SIDE = 16
NUM_IMAGES = 500
BATCH_SIZE = 16
SHAPES = ("disc", "ring", "square", "frame", "cross")


class Classifier(nn.Module):
    """A classifier without batch statistics, because those of one rank's images would differ from those of all."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1),
            nn.GroupNorm(4, 16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.GroupNorm(4, 32),
            nn.ReLU(),
        )
        self.classify = nn.Sequential(nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, len(SHAPES)))

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classify(self.features(images).flatten(1))
        return scores


def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return images of shapes of many sizes in many places, under noise, and the number of each shape."""
    labels = torch.randint(len(SHAPES), (count,), generator=generator)
    place = torch.rand(count, 2, 1, 1, generator=generator) * 4 - 2 + (SIDE - 1) / 2
    radius = torch.rand(count, 1, 1, generator=generator) * 2 + 4
    pixel = torch.arange(SIDE, dtype=radius.dtype)
    across, down = (pixel - place[:, 0]).abs(), (pixel.view(-1, 1) - place[:, 1]).abs()
    round_ = (across.square() + down.square()).sqrt() / radius
    square = torch.maximum(across, down) / radius
    cross = torch.minimum(across, down)
    drawn = torch.stack(
        (
            round_ < 1,
            (round_ < 1) & (round_ > 0.6),
            square < 1,
            (square < 1) & (square > 0.6),
            (cross < 1) & (square < 1),
        )
    )
    images = drawn[labels, torch.arange(count)].to(radius.dtype).unsqueeze(1)
    return images + 0.5 * torch.randn(images.shape, generator=generator), labels


def make_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    dataset = TensorDataset(*draw(NUM_IMAGES, torch.Generator().manual_seed(args.seed)))
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(dataset, seed=args.seed)
    loader = DataLoader(dataset, BATCH_SIZE, sampler=sampler)

    model: nn.Module = Classifier()
    optimizer = make_optimizer(model.parameters())
    if args.bundle:
        model, optimizer = autosync.parallelize(model, optimizer, args.bundle)
    else:
        model = DistributedDataParallel(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))

    losses = []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(mean_over_ranks(loss))
        report(f"epoch {epoch + 1}: loss {losses[-1]:.4f}, accuracy {accuracy(model, args.seed):.3f}")
    write_log(args.losses, losses)


@torch.no_grad()
def accuracy(model: nn.Module, seed: int) -> float:
    """Return the share of new images that are classified correctly."""
    images, labels = draw(200, torch.Generator().manual_seed(seed + 1))
    model.eval()
    right = (model(images).argmax(1) == labels).double().mean().item()
    model.train()
    return right


def mean_over_ranks(loss: Tensor) -> float:
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def report(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def write_log(path: Path | None, losses: list[float]) -> None:
    if path is not None and dist.get_rank() == 0:
        path.write_text(json.dumps(losses))


def task() -> autosync.Task:
    """Return this training as a task for `autosync tune`."""
    return autosync.Task(
        name="image-classifier",
        model=Classifier,
        batch=lambda generator: draw(BATCH_SIZE, generator),
        loss=lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=make_optimizer,
        batch_size=BATCH_SIZE,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bundle", help="train by this strategy; by stock DDP unless given")
    parser.add_argument("--losses", type=Path, help="write the losses of all steps there")
    dist.init_process_group("gloo")
    train(parser.parse_args())
    dist.destroy_process_group()
