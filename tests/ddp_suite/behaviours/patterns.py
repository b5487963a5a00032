"""Two hundred random patterns of layers left out: by step, by rank, with accumulation, by several optimizers."""

import random
from collections.abc import Callable
from typing import Any

import torch
from environment import Env, Values, adam, adamw, enter, momentum, sgd, task
from torch import Tensor, nn

NUM_PATTERNS, NUM_TOGETHER, NUM_STEPS = 200, 10, 4


class Skips(nn.Module):
    """A trunk, layers that may be left out, and heads of which the loss may take some."""

    def __init__(self, layers: int, heads: int, choose: Callable[[int], tuple[list[int], list[int]]]) -> None:
        super().__init__()
        self.trunk = nn.Linear(5, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(layers))
        self.heads = nn.ModuleList(nn.Linear(4, 1) for _ in range(heads))
        self.choose = choose
        self.turn = 0

    def forward(self, x: Tensor) -> Tensor:
        layers, heads = self.choose(self.turn)
        self.turn += 1
        x = torch.tanh(self.trunk(x))
        for number in layers:
            x = x + torch.tanh(self.layers[number](x))
        return sum((self.heads[number](x) for number in heads), torch.zeros(len(x), 1, dtype=x.dtype))


def _pattern(number: int, rank: int) -> tuple[dict[str, Any], Callable[[int], tuple[list[int], list[int]]]]:
    """What all ranks have in common, and which layers and heads each pass of this rank goes through."""
    draw = random.Random(number)
    common = {
        "layers": draw.randint(1, 4),
        "heads": draw.randint(1, 3),
        "optimizer": draw.choice([sgd, momentum, adam, adamw]),
        "accumulates": draw.random() < 0.3,
    }
    differs = draw.random() < 0.6
    likely = draw.choice([0.2, 0.5, 0.8])
    own = random.Random(f"{number} {rank if differs else 0}")
    passes = [
        (
            [one for one in range(common["layers"]) if own.random() < likely],
            [one for one in range(common["heads"]) if own.random() < likely] or [0],
        )
        for _ in range(3 * NUM_STEPS)
    ]
    return common, lambda turn: passes[turn % len(passes)]


def _trains(e: Env, number: int) -> Values:
    common, choose = _pattern(number, e.rank)

    def model() -> nn.Module:
        return Skips(common["layers"], common["heads"], choose).double()

    run = e.run(task(model, common["optimizer"]), seed=number).start(ddp={"find_unused_parameters": True})
    for _ in range(NUM_STEPS):
        run.optimizer.zero_grad()
        if common["accumulates"]:
            with run.no_sync():
                run.loss().backward()
        run.loss().backward()
        run.optimizer.step()
    values = run.values(f"{number} ")
    run.stop()
    return values


def _some(first: int) -> Callable[[Env], Values]:
    def behaviour(e: Env) -> Values:
        found: Values = {}
        for number in range(first, first + NUM_TOGETHER):
            found |= _trains(e, number)
        return found

    return behaviour


for _first in range(0, NUM_PATTERNS, NUM_TOGETHER):
    enter(f"patterns_{_first}_to_{_first + NUM_TOGETHER - 1}", _some(_first), group="patterns")
