"""Trains a recommender with large embeddings, on all ranks that torchrun starts.

    torchrun --nproc-per-node 2 examples/training/recommender.py

The script is written as for DistributedDataParallel: the embeddings have sparse gradients, which plain SGD accepts, and
the dense layers have their own group in the optimizer. To train with a strategy, tune one and pass its bundle:

    autosync tune examples/training/recommender.py --cluster configs/clusters/local-2.yaml -o best.yaml
    torchrun --nproc-per-node 2 examples/training/recommender.py --bundle best.yaml

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

NUM_USERS = 4000
NUM_ITEMS = 1500
WIDTH = 16
NUM_RATINGS = 6000
BATCH_SIZE = 100


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(NUM_USERS, WIDTH, sparse=True)
        self.items = nn.Embedding(NUM_ITEMS, WIDTH, sparse=True)
        self.score = nn.Sequential(nn.Linear(2 * WIDTH, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        scores: Tensor = self.score(torch.cat((self.users(users), self.items(items)), dim=1))
        return scores.squeeze(1)


def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return users, items, and whether the user likes the item. A few are popular, so rows repeat in a batch."""
    popularity = torch.rand(2, count, generator=generator).pow(3)
    users = (popularity[0] * NUM_USERS).long()
    items = (popularity[1] * NUM_ITEMS).long()
    likes = torch.sin(users * 3.0) + torch.sin(items * 5.0) > 0
    return users, items, likes.to(popularity.dtype)


def make_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    users, items, *dense = parameters
    return torch.optim.SGD([{"params": [users, items], "lr": 2.0}, {"params": dense}], lr=0.2)


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    users, items, likes = batch
    return functional.binary_cross_entropy_with_logits(model(users, items), likes)


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    dataset = TensorDataset(*draw(NUM_RATINGS, torch.Generator().manual_seed(args.seed)))
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(dataset, seed=args.seed)
    loader = DataLoader(dataset, BATCH_SIZE, sampler=sampler)

    model: nn.Module = Recommender()
    optimizer = make_optimizer(model.parameters())
    if args.bundle:
        model, optimizer = autosync.parallelize(model, optimizer, args.bundle)
    else:
        model = DistributedDataParallel(model)

    losses = []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            losses.append(mean_over_ranks(loss))
        report(f"epoch {epoch + 1}: loss {losses[-1]:.4f}")
    write_log(args.losses, losses)


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
        name="recommender",
        model=Recommender,
        batch=lambda generator: draw(BATCH_SIZE, generator),
        loss=loss_of,
        optimizer=make_optimizer,
        batch_size=BATCH_SIZE,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bundle", help="train by this strategy; by stock DDP unless given")
    parser.add_argument("--losses", type=Path, help="write the losses of all steps there")
    dist.init_process_group("gloo")
    train(parser.parse_args())
    dist.destroy_process_group()
