"""A small character-level language model: a Transformer that learns to spell the words of a made-up text.

It has 1.8 million parameters and ties its output to the embedding. It trains on one CPU core. To tune it:

    autosync tune examples/transformer.py --cluster configs/clusters/local-2.yaml
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

SENTENCE = "a gradient waits for no other but every step waits for the last of them"
WORDS = SENTENCE.split()
CHARACTERS = " abcdefghijklmnopqrstuvwxyz"

WIDTH = 192
NUM_HEADS = 6
NUM_LAYERS = 4
NUM_SEQUENCES = 8
NUM_CHARACTERS = 32


class Block(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)
            for part in self.query_key_value(self.attention_norm(x)).chunk(3, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        residual: Tensor = self.feed_forward(x)
        return x + residual


class LanguageModel(nn.Module):
    def __init__(
        self,
        *,
        num_symbols: int = len(CHARACTERS),
        length: int = NUM_CHARACTERS,
        width: int = WIDTH,
        num_heads: int = NUM_HEADS,
        num_layers: int = NUM_LAYERS,
        spread: float = 0.02,
    ) -> None:
        super().__init__()
        self.characters = nn.Embedding(num_symbols, width)
        self.positions = nn.Embedding(length, width)
        nn.init.normal_(self.characters.weight, std=spread)
        nn.init.normal_(self.positions.weight, std=spread)
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, text: Tensor) -> Tensor:
        positions = torch.arange(text.shape[1], device=text.device)
        x = self.blocks(self.characters(text) + self.positions(positions))
        return functional.linear(self.norm(x), self.characters.weight)


def batch(generator: torch.Generator) -> Tensor:
    """Return random words with spaces between them, as character numbers; one more than the model reads."""
    device = generator.device
    shape = (NUM_SEQUENCES, NUM_CHARACTERS)
    sequences = torch.randint(len(WORDS), shape, generator=generator, device=device).tolist()
    texts = (" ".join(WORDS[word] for word in words) for words in sequences)
    numbers = [[CHARACTERS.index(letter) for letter in text[: NUM_CHARACTERS + 1]] for text in texts]
    return torch.tensor(numbers, device=device)


def loss(model: nn.Module, text: Tensor) -> Tensor:
    logits = model(text[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def task() -> Task:
    return Task(
        name="transformer-example",
        model=LanguageModel,
        batch=batch,
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01),
        batch_size=NUM_SEQUENCES,
    )
