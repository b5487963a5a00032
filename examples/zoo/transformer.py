"""The base Transformer of "Attention is all you need" (Vaswani et al., 2017) on random sentence pairs.

One embedding of 37,000 byte pairs is used for source, target and output. It has 63,045,632 parameters (the paper rounds
to 65 million). Projections of the attention have no bias, and positions are sinusoids. To tune it:

    autosync tune examples/zoo/transformer.py --cluster configs/clusters/local-2.yaml
"""

import math

import torch
from _blocks import Attention, EncoderLayer, FeedForward
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

VOCABULARY = 37_000
WIDTH = 512
HIDDEN = 2048
NUM_HEADS = 8
NUM_LAYERS = 6
DROPOUT = 0.1

NUM_SENTENCES = 64
NUM_TOKENS = 32

Batch = tuple[Tensor, Tensor]


class DecoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attention = Attention(WIDTH, NUM_HEADS, bias=False, dropout=DROPOUT)
        self.self_norm = nn.LayerNorm(WIDTH)
        self.cross_attention = Attention(WIDTH, NUM_HEADS, bias=False, dropout=DROPOUT)
        self.cross_norm = nn.LayerNorm(WIDTH)
        self.feed_forward = FeedForward(WIDTH, HIDDEN, functional.relu)
        self.feed_forward_norm = nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        x = self.self_norm(x + self.dropout(self.self_attention(x, x, causal=True)))
        x = self.cross_norm(x + self.dropout(self.cross_attention(x, source)))
        normed: Tensor = self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
        return normed


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.words.weight, std=WIDTH**-0.5)
        self.encoder = nn.ModuleList(
            EncoderLayer(
                WIDTH,
                NUM_HEADS,
                HIDDEN,
                activation=functional.relu,
                attention_bias=False,
                dropout=DROPOUT,
            )
            for _ in range(NUM_LAYERS)
        )
        self.decoder = nn.ModuleList(DecoderLayer() for _ in range(NUM_LAYERS))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x = self.embed(source)
        for layer in self.encoder:
            x = layer(x)
        y = self.embed(target)
        for layer in self.decoder:
            y = layer(y, x)
        return functional.linear(y, self.words.weight)

    def embed(self, words: Tensor) -> Tensor:
        position = torch.arange(words.shape[1], device=words.device).unsqueeze(1)
        channel = torch.arange(0, WIDTH, 2, device=words.device)
        angle = position * torch.exp(channel * (-math.log(10_000.0) / WIDTH))
        positions = torch.cat((angle.sin(), angle.cos()), dim=1)
        embedded: Tensor = self.dropout(self.words(words) * math.sqrt(WIDTH) + positions)
        return embedded


def batch(generator: torch.Generator) -> Batch:
    """Return sentence pairs of 2,048 tokens a side; each target has one more token, for prediction."""
    device = generator.device
    source = torch.randint(VOCABULARY, (NUM_SENTENCES, NUM_TOKENS), generator=generator, device=device)
    target = torch.randint(VOCABULARY, (NUM_SENTENCES, NUM_TOKENS + 1), generator=generator, device=device)
    return source, target


def loss(model: nn.Module, batch: Batch) -> Tensor:
    source, target = batch
    logits = model(source, target[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), label_smoothing=0.1)


def task() -> Task:
    return Task(
        name="transformer",
        model=Transformer,
        batch=batch,
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(
            parameters, lr=5e-4, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0
        ),
        batch_size=NUM_SENTENCES,
    )
