"""The shared parts of the zoo's models: random data for images and ids, and the Transformer's layer.

A task file may import its neighbours: while it is loaded, its own folder is on the import path.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

ImageBatch = tuple[Tensor, Tensor]


def random_images(num_images: int, side: int, generator: torch.Generator, *, num_classes: int = 1000) -> ImageBatch:
    """Return random square images and labels. Their contents do not change how long a step takes."""
    device = generator.device
    images = torch.randn(num_images, 3, side, side, generator=generator, device=device)
    labels = torch.randint(num_classes, (num_images,), generator=generator, device=device)
    return images, labels


def classification_loss(model: nn.Module, batch: ImageBatch) -> Tensor:
    images, labels = batch
    return functional.cross_entropy(model(images), labels)


def zipf_ids(num_ids: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return ids drawn with a probability of about 1 / rank: a few are popular, most are rare.

    The number of distinct rows that a step touches decides how sparse gradients are best synchronised, so the ids of a
    recommender must not be drawn uniformly.
    """
    quantile = torch.rand(shape, generator=generator, device=generator.device)
    rank = torch.exp(quantile * math.log(num_ids + 1)).long()
    return (rank - 1).clamp(0, num_ids - 1)


class Attention(nn.Module):
    """Multi-head attention with separate projections of query, key and value."""

    def __init__(self, width: int, num_heads: int, *, bias: bool, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, width, bias=bias)
        self.value = nn.Linear(width, width, bias=bias)
        self.output = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor, context: Tensor, *, causal: bool = False) -> Tensor:
        mixed = functional.scaled_dot_product_attention(
            self._split(self.query(x)),
            self._split(self.key(context)),
            self._split(self.value(context)),
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=causal,
        )
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, width: int, hidden: int, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.expand = nn.Linear(width, hidden)
        self.contract = nn.Linear(hidden, width)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.contract(self.activation(self.expand(x)))
        return output


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward network, each normalised after its residual sum."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        hidden: int,
        *,
        activation: Callable[[Tensor], Tensor],
        attention_bias: bool = True,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.attention = Attention(width, num_heads, bias=attention_bias, dropout=dropout)
        self.attention_norm = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, hidden, activation)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, x)))
        normed: Tensor = self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
        return normed
