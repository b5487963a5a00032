"""Trains a recurrent network with gradient accumulation, on all ranks that torchrun starts.

    torchrun --nproc-per-node 2 examples/training/accumulation.py

The script is written as for DistributedDataParallel: three batches make a step, and only the last of them synchronises.
To train with a strategy, tune one and pass its bundle:

    autosync tune examples/training/accumulation.py --cluster configs/clusters/local-2.yaml -o best.yaml
    torchrun --nproc-per-node 2 examples/training/accumulation.py --bundle best.yaml

`tune` reads `task()`; training does not use it.
"""

import argparse
import contextlib
import functools
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

LENGTH = 16
NUM_EXAMPLES = 3072
BATCH_SIZE = 16
NUM_MICROSTEPS = 3
WIDTH = 48


class Reader(nn.Module):
    """Reads brackets one by one and predicts their greatest depth of nesting."""

    def __init__(self) -> None:
        super().__init__()
        self.brackets = nn.Embedding(2, 8)
        self.read = nn.GRU(8, WIDTH, num_layers=2, batch_first=True)
        self.depth = nn.Linear(WIDTH, LENGTH + 1)

    def forward(self, text: Tensor) -> Tensor:
        states, _ = self.read(self.brackets(text))
        scores: Tensor = self.depth(states[:, -1])
        return scores


def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return opening (1) and closing (0) brackets, and their greatest depth of nesting."""
    text = torch.randint(2, (count, LENGTH), generator=generator)
    depth = (2 * text - 1).cumsum(1).amax(1).clamp(min=0)
    return text, depth


def make_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(parameters, lr=2e-3, momentum=0.5)


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    text, depth = batch
    return functional.cross_entropy(model(text), depth)


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    dataset = TensorDataset(*draw(NUM_EXAMPLES, torch.Generator().manual_seed(args.seed)))
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(dataset, seed=args.seed)
    loader = DataLoader(dataset, BATCH_SIZE, sampler=sampler)

    model: nn.Module = Reader()
    optimizer = make_optimizer(model.parameters())
    if args.bundle:
        model, optimizer = autosync.parallelize(model, optimizer, args.bundle)
        without_sync = functools.partial(autosync.no_sync, model)
    else:
        model = DistributedDataParallel(model)
        without_sync = model.no_sync

    losses = []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for number, batch in enumerate(loader, start=1):
            is_last = number % NUM_MICROSTEPS == 0
            with contextlib.nullcontext() if is_last else without_sync():
                loss = loss_of(model, batch) / NUM_MICROSTEPS
                loss.backward()
            losses.append(NUM_MICROSTEPS * mean_over_ranks(loss))
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
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
        name="accumulation",
        model=Reader,
        batch=lambda generator: draw(BATCH_SIZE, generator),
        loss=loss_of,
        optimizer=make_optimizer,
        batch_size=BATCH_SIZE,
        accumulation_steps=NUM_MICROSTEPS,
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
