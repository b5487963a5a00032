"""Trains a language model with any bundle, also with one that divides the model into stages.

    autosync profile examples/stages/language_model.py --cuts -o model.yaml
    autosync strategy divide model.yaml --cluster configs/clusters/local-2.yaml --bundle -o stages.yaml
    autosync launch stages.yaml -- examples/stages/language_model.py

Every rank gives the trainer the same global batches. So the losses and the weights are the same with every bundle, and
without one, in a single process: `python examples/stages/language_model.py --alone 2`.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

import autosync

WIDTH = 64
NUM_LAYERS = 4
NUM_WORDS = 96
LENGTH = 16
BATCH_SIZE = 8


class Block(nn.Module):
    """Attention and a feed-forward network, each behind a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_layers = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query_key_value, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.query_key_value(self.before_attention(x)).unflatten(2, (3, 4, WIDTH // 4))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).flatten(2))
        y: Tensor = x + self.layers(self.before_layers(x))
        return y


class LanguageModel(nn.Module):
    """The output is tied to the embedding, so the first and the last stage share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(NUM_WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(NUM_LAYERS)])
        self.last = nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, NUM_WORDS, bias=False)
        self.output.weight = self.words.weight

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text) + self.places(torch.arange(text.shape[1]))
        scores: Tensor = self.output(self.last(self.blocks(x)))
        return scores


def draw(count: int, generator: torch.Generator) -> Tensor:
    """Return texts in which each word follows from the two before it, with some noise."""
    text = torch.randint(NUM_WORDS, (count, LENGTH + 1), generator=generator)
    for place in range(2, LENGTH + 1):
        follows = (3 * text[:, place - 1] + text[:, place - 2]) % NUM_WORDS
        text[:, place] = torch.where(torch.rand(count, generator=generator) < 0.9, follows, text[:, place])
    return text


def make_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-3)


def loss_of(model: nn.Module, text: Tensor) -> Tensor:
    return functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def task() -> autosync.Task:
    return autosync.Task(
        model=LanguageModel,
        batch=lambda generator: draw(BATCH_SIZE, generator),
        loss=loss_of,
        optimizer=make_optimizer,
        batch_size=BATCH_SIZE,
    )


def batches(args: argparse.Namespace, size: int) -> Iterator[Tensor]:
    """Yield the same batches on every rank."""
    generator = torch.Generator().manual_seed(args.seed)
    for _ in range(args.steps):
        yield draw(size, generator)


def train_alone(args: argparse.Namespace) -> tuple[list[float], dict[str, Tensor]]:
    model = LanguageModel()
    optimizer = make_optimizer(model.parameters())
    losses = []
    for batch in batches(args, args.alone * BATCH_SIZE):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, model.state_dict()


def train(args: argparse.Namespace) -> tuple[list[float], dict[str, Tensor]]:
    with autosync.trainer(task(), args.bundle) as trainer:
        losses = [trainer.step(batch) for batch in batches(args, trainer.global_batch)]
        return losses, trainer.state_dict()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, help="train with this strategy  [default: that of autosync launch]")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alone", type=int, metavar="N", help="train in this process as N ranks would")
    parser.add_argument("--result", type=Path, help="write losses and weights here")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    if args.alone:
        losses, state = train_alone(args)
    else:
        dist.init_process_group("gloo")
        losses, state = train(args)
    if args.alone or dist.get_rank() == 0:
        print(json.dumps({"first": losses[0], "last": losses[-1]}))
        if args.result:
            torch.save({"losses": losses, "state": state}, args.result)
    if not args.alone:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
