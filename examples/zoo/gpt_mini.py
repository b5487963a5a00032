"""A GPT-2 with two layers of width 256 and a vocabulary of 4,096, on random text: 2,694,144 parameters.

Two fifths of them are the embedding. It is also the output layer, so its gradient is complete only at the very end.
Gradients are not clipped. To tune it:

    autosync tune examples/zoo/gpt_mini.py --cluster configs/clusters/local-2.yaml
"""

from functools import partial

import torch
from _gpt import GPT, next_token_loss, random_text

from autosync import Task

VOCABULARY = 4096
NUM_SEQUENCES = 32
NUM_TOKENS = 256


def task() -> Task:
    return Task(
        name="gpt_mini",
        model=lambda: GPT(vocabulary=VOCABULARY, max_positions=256, num_layers=2, width=256, num_heads=8),
        batch=partial(random_text, VOCABULARY, NUM_SEQUENCES, NUM_TOKENS),
        loss=next_token_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1),
        batch_size=NUM_SEQUENCES,
    )
