"""GPT-2 (Radford et al., 2019) in any size, with its output tied to the word embedding.

Linear weights have torch's orientation (outputs, inputs).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

DROPOUT = 0.1


class Block(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.hidden_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        hidden = functional.gelu(self.expand(self.hidden_norm(x)), approximate="tanh")
        residual: Tensor = self.dropout(self.contract(hidden))
        return x + residual

    def attention(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)
            for part in self.query_key_value(x).chunk(3, dim=2)
        )
        dropout = DROPOUT if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output


class GPT(nn.Module):
    def __init__(self, *, vocabulary: int, max_positions: int, num_layers: int, width: int, num_heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(max_positions, width)
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(width)
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


def random_text(vocabulary: int, num_sequences: int, num_tokens: int, generator: torch.Generator) -> Tensor:
    """Return sequences with one token more than the model reads, so that it can predict each next token."""
    shape = (num_sequences, num_tokens + 1)
    return torch.randint(vocabulary, shape, generator=generator, device=generator.device)


def next_token_loss(model: nn.Module, text: Tensor) -> Tensor:
    logits = model(text[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
