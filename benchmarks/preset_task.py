"""What `preset_matrix.py --run` trains: a convolution, a table with sparse gradients and linear layers, in float64.

By plain SGD, which every preset takes. On a rank the task leaves its parameters in a file, as they are when the step
after the last that counts begins: whoever asks for a `state_dict` then has waited for all updates.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

# Said at all so that sparse gradients do not warn.
torch.sparse.check_sparse_tensor_invariants.disable()

NUM_STEPS = 4
LEARNING_RATE = 0.05
FOLDER = "AUTOSYNC_PRESET_MATRIX_FOLDER"
NUM_EXAMPLES, NUM_WORDS, NUM_LABELS = 4, 400, 10


class Net(nn.Module):
    """1.4 MB, most of it in one layer: more than stock DDP's first bucket takes."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 16, 3)
        self.words = nn.Embedding(NUM_WORDS, 32, sparse=True)
        self.hidden = nn.Linear(16 * 6 * 6 + 32, 256)
        self.last = nn.Linear(256, NUM_LABELS)

    def forward(self, images: Tensor, words: Tensor) -> Tensor:
        seen = torch.tanh(self.convolution(images)).flatten(1)
        both = torch.cat((seen, self.words(words).mean(1)), dim=1)
        labels: Tensor = self.last(torch.tanh(self.hidden(both)))
        return labels


_num_losses = 0


def _model() -> nn.Module:
    global _num_losses  # noqa: PLW0603 - a rank trains one model at a time, and its steps are counted
    _num_losses = 0
    return Net().double()


def _batch(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    images = torch.randn(NUM_EXAMPLES, 3, 8, 8, generator=generator, dtype=torch.float64)
    words = torch.randint(NUM_WORDS, (NUM_EXAMPLES, 5), generator=generator)
    return images, words, torch.randint(NUM_LABELS, (NUM_EXAMPLES,), generator=generator)


def _loss(model: nn.Module, batch: Any) -> Tensor:
    global _num_losses  # noqa: PLW0603 - as above
    if _num_losses == NUM_STEPS and FOLDER in os.environ and "RANK" in os.environ:
        _leave(model, Path(os.environ[FOLDER]) / f"rank-{os.environ['RANK']}.npz")
    _num_losses += 1
    images, words, labels = batch
    return functional.cross_entropy(model(images, words), labels)


def _leave(model: nn.Module, path: Path) -> None:
    values: dict[str, Any] = {name: value.numpy() for name, value in model.state_dict().items()}
    unfinished = path.with_suffix(".unfinished.npz")
    np.savez(unfinished, **values)
    unfinished.replace(path)


def task() -> Task:
    """The task."""
    return Task(
        name="preset-matrix",
        model=_model,
        batch=_batch,
        loss=_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=LEARNING_RATE),
        batch_size=NUM_EXAMPLES,
    )
