"""Trains a character-level language model on sums in words, on all ranks that torchrun starts.

    torchrun --nproc-per-node 2 examples/training/language_model.py

The script is written as for DistributedDataParallel: a Transformer whose output is tied to its embedding, AdamW with a
warm-up and without decay of vectors, and clipping by the norm of all gradients. To train with a strategy, tune one and
pass its bundle:

    autosync tune examples/training/language_model.py --cluster configs/clusters/local-2.yaml -o best.yaml
    torchrun --nproc-per-node 2 examples/training/language_model.py --bundle best.yaml

`tune` reads `task()`; training does not use it. The task says that the norm is clipped, because a strategy may update
where no rank has all gradients, and then the engine must clip.
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
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import autosync

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
CHARACTERS = " .abcdefghijklmnopqrstuvwxyz"
NUM_SENTENCES = 512
NUM_CHARACTERS = 32
BATCH_SIZE = 8
WIDTH = 48
NUM_HEADS = 4
NUM_LAYERS = 2
CLIP_NORM = 1.0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.view(*x.shape[:2], NUM_HEADS, -1).transpose(1, 2)
            for part in self.query_key_value(self.attention_norm(x)).chunk(3, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        residual: Tensor = self.feed_forward(x)
        return x + residual


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(CHARACTERS), WIDTH)
        self.positions = nn.Embedding(NUM_CHARACTERS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(NUM_LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, len(CHARACTERS), bias=False)
        self.output.weight = self.characters.weight
        nn.init.normal_(self.characters.weight, std=0.05)

    def forward(self, text: Tensor) -> Tensor:
        positions = torch.arange(text.shape[1], device=text.device)
        logits: Tensor = self.output(self.norm(self.blocks(self.characters(text) + self.positions(positions))))
        return logits


class Sums(Dataset[Tensor]):
    """Stretches of a text of correct sums, as character numbers; each has one character more than the model reads."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        pairs = torch.randint(7, (4 * count, 2), generator=generator).tolist()
        text = "".join(f"{NUMBERS[a]} and {NUMBERS[b]} make {NUMBERS[a + b]}. " for a, b in pairs)
        self._numbers = torch.tensor([CHARACTERS.index(character) for character in text])
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tensor:
        start = index * NUM_CHARACTERS
        return self._numbers[start : start + NUM_CHARACTERS + 1]


def make_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    everything = list(parameters)
    matrices = [parameter for parameter in everything if parameter.dim() > 1]
    vectors = [parameter for parameter in everything if parameter.dim() <= 1]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors}], lr=3e-3, weight_decay=0)


def loss_of(model: nn.Module, text: Tensor) -> Tensor:
    return functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    dataset = Sums(NUM_SENTENCES, torch.Generator().manual_seed(args.seed))
    sampler: DistributedSampler[Tensor] = DistributedSampler(dataset, seed=args.seed)
    loader = DataLoader(dataset, BATCH_SIZE, sampler=sampler)

    model: nn.Module = LanguageModel()
    optimizer = make_optimizer(model.parameters())
    if args.bundle:
        model, optimizer = autosync.parallelize(model, optimizer, args.bundle)
    else:
        model = DistributedDataParallel(model)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=10)

    losses = []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for text in loader:
            optimizer.zero_grad()
            loss = loss_of(model, text)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            warm_up.step()
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

    def batch(generator: torch.Generator) -> Tensor:
        dataset = Sums(BATCH_SIZE, generator)
        return torch.stack([dataset[index] for index in range(BATCH_SIZE)])

    return autosync.Task(
        name="language-model",
        model=LanguageModel,
        batch=batch,
        loss=loss_of,
        optimizer=make_optimizer,
        batch_size=BATCH_SIZE,
        clip_norm=CLIP_NORM,
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
