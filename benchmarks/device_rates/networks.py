"""The networks whose throughputs are compared, built on torch's `meta` device or on a GPU.

Shapes are those of the published implementations: convolutional networks of torchvision and timm, and NVIDIA's BERT and
NeuMF. What does not change operation counts, such as how weights are drawn, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync.specs import task_run
from autosync.specs.task_file import load_task

ZOO = Path(__file__).parents[2] / "examples" / "zoo"
NUM_IDS = 20_000
"""Random ids are below it, and below the length of every table."""


class Network(NamedTuple):
    """A network, its loss on a batch, its optimizer's state tensors, and the share of steps that update it."""

    build: Callable[[], nn.Module]
    loss: Callable[[nn.Module, int], Tensor]
    state_slots: int = 1
    updates: float = 1.0


def normed(inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs)]


class Residual(nn.Module):
    """A block with a skip connection and, with `squeeze`, a gate for each channel."""

    def __init__(self, inputs: int, body: list[nn.Module], outputs: int, stride: int, squeeze: int = 0) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)
        self.gate = Gate(outputs, squeeze, nn.ReLU) if squeeze else nn.Identity()
        same = stride == 1 and inputs == outputs
        self.skip = nn.Identity() if same else nn.Sequential(*normed(inputs, outputs, 1, stride=stride))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.gate(self.body(x)) + self.skip(x), inplace=True)


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int, squeezed: int, activation: type[nn.Module]) -> None:
        super().__init__()
        layers = [nn.Conv2d(channels, squeezed, 1), activation(), nn.Conv2d(squeezed, channels, 1), nn.Sigmoid()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        gated: Tensor = x * self.layers(x.mean((2, 3), keepdim=True))
        return gated


class ClassifiedImages(nn.Module):
    def __init__(self, features: nn.Module, channels: int) -> None:
        super().__init__()
        self.features, self.head = features, nn.Linear(channels, 1000)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images).mean((2, 3)))
        return logits


def resnet(
    depths: tuple[int, ...], *, deep: bool = True, width: int = 64, groups: int = 1, squeeze: bool = False
) -> nn.Module:
    """Return a residual network; `width` is that of a group in the first stage, times 64 for one group."""
    layers = [*normed(3, 64, 7, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, depth in enumerate(depths):
        inner, outputs = width * 2**stage, (256 if deep else 64) * 2**stage
        for index in range(depth):
            stride = 2 if stage and index == 0 else 1
            if deep:
                body = [*normed(inputs, inner, 1), nn.ReLU(inplace=True)]
                body += [*normed(inner, inner, 3, stride=stride, groups=groups), nn.ReLU(inplace=True)]
                body += normed(inner, outputs, 1)
            else:
                body = [*normed(inputs, outputs, 3, stride=stride), nn.ReLU(inplace=True), *normed(outputs, outputs, 3)]
            layers.append(Residual(inputs, body, outputs, stride, outputs // 16 if squeeze else 0))
            inputs = outputs
    return ClassifiedImages(nn.Sequential(*layers), inputs)


def vgg(stages: tuple[int, ...]) -> nn.Module:
    layers: list[nn.Module] = []
    inputs = 3
    for depth, width in zip(stages, (64, 128, 256, 512, 512), strict=True):
        for _ in range(depth):
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = width
        layers.append(nn.MaxPool2d(2))
    head = [nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(inplace=True), nn.Dropout()]
    head += [nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 1000)]
    return nn.Sequential(*layers, *head)


class Inverted(nn.Module):
    """An inverted residual of MobileNetV2 and EfficientNet."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int, *, gated: bool) -> None:
        super().__init__()
        activation: type[nn.Module] = nn.SiLU if gated else nn.ReLU6
        inner = inputs * expansion
        body: list[nn.Module] = [*normed(inputs, inner, 1), activation(inplace=True)] if expansion > 1 else []
        body += [*normed(inner, inner, kernel, stride=stride, groups=inner), activation(inplace=True)]
        body += [Gate(inner, max(1, inputs // 4), nn.SiLU)] if gated else []
        self.body = nn.Sequential(*body, *normed(inner, outputs, 1))
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.is_residual else y


MOBILENET = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 32, 3, 2, 3),
    (6, 64, 4, 2, 3),
    (6, 96, 3, 1, 3),
    (6, 160, 3, 2, 3),
)
MOBILENET += ((6, 320, 1, 1, 3),)
EFFICIENT = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
)
EFFICIENT += ((6, 320, 1, 1, 3),)


def inverted(rows: tuple[tuple[int, ...], ...], *, gated: bool, wide: float = 1.0, deep: float = 1.0) -> nn.Module:
    """Return a network of inverted residuals; a row has expansion, channels, blocks, stride and kernel."""
    inputs = _rounded(32 * wide)
    activation: type[nn.Module] = nn.SiLU if gated else nn.ReLU6
    layers = [*normed(3, inputs, 3, stride=2), activation(inplace=True)]
    for expansion, channels, depth, stride, kernel in rows:
        for index in range(-(-int(depth * deep * 1000) // 1000)):
            outputs = _rounded(channels * wide)
            layers.append(Inverted(inputs, outputs, kernel, stride if index == 0 else 1, expansion, gated=gated))
            inputs = outputs
    last = _rounded(1280 * wide) if gated else 1280
    return ClassifiedImages(nn.Sequential(*layers, *normed(inputs, last, 1), activation(inplace=True)), last)


def _rounded(channels: float) -> int:
    return max(8, int(channels + 4) // 8 * 8)


class Encoder(nn.Module):
    """A layer of a Transformer, as in BERT (normalised after each part) or ViT (before)."""

    def __init__(self, width: int, heads: int, *, first: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.first, self.dropout = heads, first, dropout
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            x = x + self._attended(self.norms[0](x))
            return x + self._fed(self.norms[1](x))
        x = self.norms[0](x + functional.dropout(self._attended(x), self.dropout))
        normed_once: Tensor = self.norms[1](x + functional.dropout(self._fed(x), self.dropout))
        return normed_once

    def _attended(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = [
            one(x).view(batch, length, self.heads, -1).transpose(1, 2) for one in (self.query, self.key, self.value)
        ]
        scores = torch.softmax((parts[0] @ parts[1].transpose(2, 3)) * (width / self.heads) ** -0.5, dim=-1)
        mixed = functional.dropout(scores, self.dropout) @ parts[2]
        output: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, length, width))
        return output

    def _fed(self, x: Tensor) -> Tensor:
        fed: Tensor = self.contract(functional.gelu(self.expand(x)))
        return fed


class Vit(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.start, self.places = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.zeros(1, 197, width))
        self.layers = nn.Sequential(*(Encoder(width, heads, first=True, dropout=0.0) for _ in range(12)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.start.expand(len(images), -1, -1), x), dim=1) + self.places
        logits: Tensor = self.head(self.norm(self.layers(x))[:, 0])
        return logits


class Bert(nn.Module):
    """BERT with a head for questions (SQuAD), or for masked words and the next sentence (pre-training)."""

    def __init__(self, width: int, layers: int, masked: int = 0) -> None:
        super().__init__()
        self.masked = masked
        self.words, self.places, self.kinds = (nn.Embedding(rows, width) for rows in (30_522, 512, 2))
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(*(Encoder(width, width // 64, first=False, dropout=0.1) for _ in range(layers)))
        self.head = nn.Linear(width, width if masked else 2)
        self.head_norm = nn.LayerNorm(width)

    def forward(self, words: Tensor) -> Tensor:
        places = torch.zeros(words.shape[1], dtype=torch.long, device=words.device)
        x = self.words(words) + self.places(places) + self.kinds(torch.zeros_like(words))
        x = self.layers(functional.dropout(self.norm(x), 0.1))
        if not self.masked:
            answers: Tensor = self.head(x)
            return answers
        x = self.head_norm(functional.gelu(self.head(x[:, : self.masked])))
        return functional.linear(x, self.words.weight)


class NeuMF(nn.Module):
    """Neural collaborative filtering on MovieLens-20M, with dense gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = nn.ModuleList([nn.Embedding(138_493, 64), nn.Embedding(26_744, 64)])
        self.tables = nn.ModuleList([nn.Embedding(138_493, 128), nn.Embedding(26_744, 128)])
        self.layers = nn.ModuleList([nn.Linear(*pair) for pair in pairwise((256, 256, 128, 64))])
        self.score = nn.Linear(128, 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        x = torch.cat((self.tables[0](users), self.tables[1](items)), dim=1)
        for layer in self.layers:
            x = functional.dropout(functional.relu(layer(x)), 0.5)
        factors = self.factors[0](users) * self.factors[1](items)
        score: Tensor = self.score(torch.cat((factors, x), dim=1))
        return score


def _images(side: int) -> Callable[[nn.Module, int], Tensor]:
    def loss(model: nn.Module, batch: int) -> Tensor:
        place = _place(model)
        labels = torch.zeros(batch, dtype=torch.long, device=place)
        logits = model(torch.rand(batch, 3, side, side, device=place))
        # InceptionV3 has a second head, which the published figures leave out.
        return functional.cross_entropy(logits[0] if isinstance(logits, tuple) else logits, labels)

    return loss


def _text(length: int) -> Callable[[nn.Module, int], Tensor]:
    def loss(model: nn.Module, batch: int) -> Tensor:
        logits = model(torch.randint(NUM_IDS, (batch, length), device=_place(model))).flatten(0, 1)
        return functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device=_place(model)))

    return loss


def _ratings(model: nn.Module, batch: int) -> Tensor:
    ids = torch.randint(NUM_IDS, (batch,), device=_place(model))
    scores = model(ids, ids)
    return functional.binary_cross_entropy_with_logits(scores, torch.zeros_like(scores))


def _place(model: nn.Module) -> torch.device:
    """Return where a model is: on `meta` if its operations are counted, or on a GPU."""
    return next(model.parameters()).device


def _of_zoo(name: str) -> Callable[[], nn.Module]:
    return lambda: task_run.build_model(load_task(str(ZOO / f"{name}.py")))


NETWORKS: Mapping[str, Network] = {
    "resnet18": Network(lambda: resnet((2, 2, 2, 2), deep=False), _images(224)),
    "resnet34": Network(lambda: resnet((3, 4, 6, 3), deep=False), _images(224)),
    "resnet50": Network(lambda: resnet((3, 4, 6, 3)), _images(224)),
    "resnet101": Network(lambda: resnet((3, 4, 23, 3)), _images(224)),
    "resnet152": Network(lambda: resnet((3, 8, 36, 3)), _images(224)),
    "wide_resnet50_2": Network(lambda: resnet((3, 4, 6, 3), width=128), _images(224)),
    "resnext50_32x4d": Network(lambda: resnet((3, 4, 6, 3), width=128, groups=32), _images(224)),
    "resnext101_32x4d": Network(lambda: resnet((3, 4, 23, 3), width=128, groups=32), _images(224)),
    "se_resnext101_32x4d": Network(lambda: resnet((3, 4, 23, 3), width=128, groups=32, squeeze=True), _images(224)),
    "vgg16": Network(lambda: vgg((2, 2, 3, 3, 3)), _images(224)),
    "densenet121": Network(_of_zoo("densenet121"), _images(224)),
    "inception_v3": Network(_of_zoo("inception_v3"), _images(299)),
    "vgg19": Network(lambda: vgg((2, 2, 4, 4, 4)), _images(224)),
    "mobilenet_v2": Network(lambda: inverted(MOBILENET, gated=False), _images(224)),
    "efficientnet_b0": Network(lambda: inverted(EFFICIENT, gated=True), _images(224)),
    "efficientnet_b4": Network(lambda: inverted(EFFICIENT, gated=True, wide=1.4, deep=1.8), _images(380)),
    "vit_tiny": Network(lambda: Vit(192, 3), _images(224)),
    "vit_small": Network(lambda: Vit(384, 6), _images(224)),
    "vit_base": Network(lambda: Vit(768, 12), _images(224)),
    "bert_base_384": Network(lambda: Bert(768, 12), _text(384), state_slots=2),
    "bert_large_384": Network(lambda: Bert(1024, 24), _text(384), state_slots=2),
    "bert_large_masked_128": Network(lambda: Bert(1024, 24, 20), _text(128), state_slots=2, updates=1 / 32),
    "ncf": Network(NeuMF, _ratings, state_slots=2),
}
