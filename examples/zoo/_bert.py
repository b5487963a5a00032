"""BERT with both of its pre-training heads (Devlin et al., 2018): masked words and next sentence.

The decoder of the masked words is the word embedding itself, so its gradient is dense and complete only at the end of
the backward pass. All sequences are full, so there is no padding mask.
"""

import torch
from _blocks import EncoderLayer
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 30_522
MAX_POSITIONS = 512
MASKED_SHARE = 0.15
MASK_ID = 103

BertBatch = dict[str, Tensor]


class Bert(nn.Module):
    def __init__(self, *, num_layers: int, width: int, num_heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(MAX_POSITIONS, width)
        self.segments = nn.Embedding(2, width)
        self.embedding_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)
        self.encoder = nn.Sequential(
            *(EncoderLayer(width, num_heads, 4 * width, activation=functional.gelu) for _ in range(num_layers))
        )
        self.pooler = nn.Linear(width, width)
        self.word_bias = nn.Parameter(torch.zeros(VOCABULARY))
        self.word_transform = nn.Linear(width, width)
        self.word_norm = nn.LayerNorm(width)
        self.next_sentence = nn.Linear(width, 2)
        self.apply(initialise)

    def forward(self, words: Tensor, segments: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of the masked words, and of whether the second sentence follows the first."""
        positions = torch.arange(words.shape[1], device=words.device)
        x = self.words(words) + self.positions(positions) + self.segments(segments)
        x = self.encoder(self.dropout(self.embedding_norm(x)))
        is_next = self.next_sentence(torch.tanh(self.pooler(x[:, 0])))
        x = torch.take_along_dim(x, masked.unsqueeze(2), dim=1)
        x = self.word_norm(functional.gelu(self.word_transform(x)))
        return functional.linear(x, self.words.weight, self.word_bias), is_next


def initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def pretraining_batch(num_sequences: int, num_tokens: int, generator: torch.Generator) -> BertBatch:
    """Return pairs of random sentences of equal length with 15 % of their words hidden."""

    def integers(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator, device=generator.device)

    words = integers(VOCABULARY, num_sequences, num_tokens)
    # Sorting random numbers draws the same number of different positions from every sequence.
    ranks = torch.rand(words.shape, generator=generator, device=generator.device).argsort(1)
    masked = ranks[:, : round(num_tokens * MASKED_SHARE)]
    halves = torch.arange(num_tokens, device=generator.device) >= num_tokens // 2
    return {
        "words": words.scatter(1, masked, MASK_ID),
        "segments": halves.long().expand(num_sequences, -1),
        "masked": masked,
        "masked_words": words.gather(1, masked),
        "is_next": integers(2, num_sequences),
    }


def pretraining_loss(model: nn.Module, batch: BertBatch) -> Tensor:
    words, is_next = model(batch["words"], batch["segments"], batch["masked"])
    word_loss = functional.cross_entropy(words.flatten(0, 1), batch["masked_words"].flatten())
    return word_loss + functional.cross_entropy(is_next, batch["is_next"])
