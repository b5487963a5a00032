"""GPT-2 small (Radford et al., 2019) on random text: 124,439,808 parameters.

The output is tied to the embedding; linear weights have torch's orientation (outputs, inputs). To tune it:

    autosync tune examples/zoo/gpt2_small.py --cluster configs/clusters/local-2.yaml
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

VOCABULARY = 50_257
MAX_POSITIONS = 1024
WIDTH = 768
NUM_HEADS = 12
NUM_LAYERS = 12
DROPOUT = 0.1

NUM_SEQUENCES = 4
NUM_TOKENS = 512


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)
        self.hidden_norm = nn.LayerNorm(WIDTH)
        self.expand = nn.Linear(WIDTH, 4 * WIDTH)
        self.contract = nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        hidden = functional.gelu(self.expand(self.hidden_norm(x)), approximate="tanh")
        residual: Tensor = self.dropout(self.contract(hidden))
        return x + residual

    def attention(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.view(*x.shape[:2], NUM_HEADS, -1).transpose(1, 2) for part in self.query_key_value(x).chunk(3, dim=2)
        )
        dropout = DROPOUT if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output


class GPT2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(MAX_POSITIONS, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.Sequential(*(Block() for _ in range(NUM_LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.apply(initialise)

    def forward(self, words: Tensor) -> Tensor:
        positions = torch.arange(words.shape[1], device=words.device)
        x = self.dropout(self.words(words) + self.positions(positions))
        return functional.linear(self.norm(self.blocks(x)), self.words.weight)


def initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def batch(generator: torch.Generator) -> Tensor:
    shape = (NUM_SEQUENCES, NUM_TOKENS + 1)
    return torch.randint(VOCABULARY, shape, generator=generator, device=generator.device)


def loss(model: nn.Module, text: Tensor) -> Tensor:
    logits = model(text[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def task() -> Task:
    return Task(
        name="gpt2_small",
        model=GPT2,
        batch=batch,
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1),
        batch_size=NUM_SEQUENCES,
        clip_norm=1.0,
    )
