"""The trainings of `convergence.py`: a character-level transformer and a convolutional network, on generated data.

Both draw new data in every step, so nothing can be memorised, and the loss of a step is the loss on new data. Both have
a lower limit of the loss that no model can beat: words follow one another by chance, and digits are hidden by noise.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from transformer import LanguageModel
from transformer import loss as text_loss

# The text: short tales. Some words are random, and some follow from others (such as the person and the endings).
NAMES = "anna boris clara david emma felix greta henry irene jacob karla louis maria nina oscar paula".split()  # noqa: SIM905 - words are read as words
THINGS = "apple basket candle door engine feather garden hammer island jacket kettle lantern mirror".split()  # noqa: SIM905
QUALITIES = "old new red green heavy small broken golden quiet strange wooden warm".split()  # noqa: SIM905
DEEDS = "find watch carry paint repair follow want need sell clean hold lift".split()  # noqa: SIM905
PLACES = "river mill forest tower market bridge cellar station".split()  # noqa: SIM905
CHARACTERS = "\n .abcdefghijklmnopqrstuvwxyz"

NUM_CHARACTERS = 64
NUM_TEXTS = 4


def language_model() -> nn.Module:
    """Return the example's model with about 230,000 parameters."""
    return LanguageModel(
        num_symbols=len(CHARACTERS),
        length=NUM_CHARACTERS,
        width=96,
        num_heads=4,
        num_layers=2,
        spread=0.05,
    )


def tale(draw: random.Random) -> str:
    """Return a few sentences about one person and one thing."""
    who, other = draw.sample(NAMES, 2)
    thing, deed, place = draw.choice(THINGS), draw.choice(DEEDS), draw.choice(PLACES)
    sentences = [
        f"{who} {deed}s the {draw.choice(QUALITIES)} {thing} near the {place}.",
        f"{other} and {who} {draw.choice(DEEDS)} two {thing}s.",
        f"the {thing} is {draw.choice(QUALITIES)} and {draw.choice(QUALITIES)}.",
        f"{other} {draw.choice(DEEDS)}s it at the {place}.",
    ]
    draw.shuffle(sentences)
    return " ".join(sentences) + "\n"


def texts(generator: torch.Generator) -> Tensor:
    """Return stretches that begin anywhere in a tale, as character numbers; one more than the model reads."""
    draw = random.Random(int(torch.randint(2**62, (), generator=generator)))
    stretches = []
    for _ in range(NUM_TEXTS):
        text = tale(draw) + tale(draw)
        start = draw.randrange(len(text) - NUM_CHARACTERS)
        stretches.append([CHARACTERS.index(character) for character in text[start : start + NUM_CHARACTERS + 1]])
    return torch.tensor(stretches)


# The images: digits of five by seven dots, drawn twice as large.
DOTS = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00110 01000 10000 11111",
    "01110 10001 00001 00110 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)
SIDE = 16
NUM_IMAGES = 32
NOISE = 1.0


class ConvNet(nn.Module):
    """A network of about 230,000 parameters without batch statistics, which would differ between ranks."""

    def __init__(self) -> None:
        super().__init__()
        widths = (1, 16, 32, 64, 128)
        layers: list[nn.Module] = []
        for number, width in enumerate(widths[1:]):
            layers += [
                nn.Conv2d(widths[number], width, 3, stride=1 + (number in (1, 2)), padding=1),
                nn.GroupNorm(8, width),
                nn.ReLU(),
            ]
        self.features = nn.Sequential(*layers)
        self.classify = nn.Sequential(nn.Linear(128 * 16, 64), nn.ReLU(), nn.Linear(64, len(DOTS)))

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classify(self.features(images).flatten(1))
        return scores


GLYPHS = torch.tensor([[[float(dot) for dot in row] for row in digit.split()] for digit in DOTS])


def images(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return digits in many places, some paler than others, under noise."""
    labels = torch.randint(len(DOTS), (NUM_IMAGES,), generator=generator)
    drawn = GLYPHS[labels].repeat_interleave(2, 1).repeat_interleave(2, 2)
    down = torch.randint(SIDE - drawn.shape[1] + 1, (NUM_IMAGES,), generator=generator)
    across = torch.randint(SIDE - drawn.shape[2] + 1, (NUM_IMAGES,), generator=generator)
    canvas = torch.zeros(NUM_IMAGES, SIDE, SIDE)
    rows = down[:, None] + torch.arange(drawn.shape[1])
    columns = across[:, None] + torch.arange(drawn.shape[2])
    canvas[torch.arange(NUM_IMAGES)[:, None, None], rows[:, :, None], columns[:, None, :]] = drawn
    contrast = torch.rand(NUM_IMAGES, 1, 1, generator=generator) + 0.5
    noise = NOISE * torch.randn(canvas.shape, generator=generator)
    return (canvas * contrast + noise).unsqueeze(1), labels


def image_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The settings of the optimizer. `momentum` is also AdamW's first beta."""

    learning_rate: float
    momentum: float
    clip_norm: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A task that depends on its optimizer's settings, the chosen settings, and the number of steps."""

    make: Callable[[Setting], Task]
    setting: Setting
    num_steps: int


def transformer(setting: Setting) -> Task:
    return Task(
        name="transformer",
        model=language_model,
        batch=texts,
        loss=text_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=setting.learning_rate, momentum=setting.momentum),
        batch_size=NUM_TEXTS,
        clip_norm=setting.clip_norm,
    )


def transformer_adamw(setting: Setting) -> Task:
    return replace(
        transformer(setting),
        optimizer=lambda parameters: torch.optim.AdamW(
            parameters, lr=setting.learning_rate, betas=(setting.momentum, 0.999), weight_decay=0.01
        ),
    )


def convnet(setting: Setting) -> Task:
    return Task(
        name="convnet",
        model=ConvNet,
        batch=images,
        loss=image_loss,
        optimizer=lambda parameters: torch.optim.SGD(
            parameters, lr=setting.learning_rate, momentum=setting.momentum, weight_decay=1e-4
        ),
        batch_size=NUM_IMAGES,
    )


TRAININGS = {
    "transformer": Training(
        make=transformer,
        setting=Setting(learning_rate=0.6, momentum=0.5, clip_norm=1.0),
        num_steps=2400,
    ),
    "transformer, AdamW": Training(
        make=transformer_adamw,
        setting=Setting(learning_rate=3e-3, momentum=0.9),
        num_steps=800,
    ),
    "convnet": Training(
        make=convnet,
        setting=Setting(learning_rate=0.1, momentum=0.5),
        num_steps=1600,
    ),
}


def schedule(optimizer: torch.optim.Optimizer, num_steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    """Return a schedule: the rate rises over the first twentieth of the steps and falls to zero along a cosine."""
    rise = num_steps // 20

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        return (1 + math.cos(math.pi * (step - rise) / (num_steps - rise))) / 2

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
