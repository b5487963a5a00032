"""The small LSTM of Zaremba et al. (2014) for the Penn Treebank's 10,000 words: 4,651,600 parameters.

It has two layers of 200 units over 20 words. Each word uses every recurrent weight once. In contrast to the paper, a
cell has one bias, and gradients are not clipped, so that the embedding's sparse gradients can travel as rows. To tune
it:

    autosync tune examples/zoo/lstm_ptb.py --cluster configs/clusters/local-2.yaml
"""

import torch
from _blocks import zipf_ids
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

VOCABULARY = 10_000
WIDTH = 200
NUM_LAYERS = 2
NUM_WORDS = 20

BATCH_SIZE = 64


class LSTM(nn.Module):
    """A layer of cells. The inputs of all words are multiplied at once, the states word by word."""

    def __init__(self) -> None:
        super().__init__()
        self.from_inputs = nn.Linear(WIDTH, 4 * WIDTH)
        self.from_states = nn.Linear(WIDTH, 4 * WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        cell = state = torch.zeros_like(x[:, 0])
        states = []
        for inputs in self.from_inputs(x).unbind(1):
            enter, forget, leave, fresh = (inputs + self.from_states(state)).chunk(4, dim=1)
            cell = forget.sigmoid() * cell + enter.sigmoid() * fresh.tanh()
            state = leave.sigmoid() * cell.tanh()
            states.append(state)
        return torch.stack(states, dim=1)


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH, sparse=True)
        self.layers = nn.Sequential(*(LSTM() for _ in range(NUM_LAYERS)))
        self.output = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, words: Tensor) -> Tensor:
        logits: Tensor = self.output(self.layers(self.words(words)))
        return logits


def batch(generator: torch.Generator) -> Tensor:
    """Return text in which few words are frequent, with one word more than the model reads."""
    return zipf_ids(VOCABULARY, (BATCH_SIZE, NUM_WORDS + 1), generator)


def loss(model: nn.Module, text: Tensor) -> Tensor:
    logits = model(text[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def task() -> Task:
    return Task(
        name="lstm_ptb",
        model=LanguageModel,
        batch=batch,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        batch_size=BATCH_SIZE,
    )
