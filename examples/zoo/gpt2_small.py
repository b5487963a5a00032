"""GPT-2 small (Radford et al., 2019) on random text: 124,439,808 parameters.

Its output is tied to the embedding. To tune it:

    autosync tune examples/zoo/gpt2_small.py --cluster configs/clusters/local-2.yaml
"""

from functools import partial

import torch
from _gpt import GPT, next_token_loss, random_text

from autosync import Task

VOCABULARY = 50_257
NUM_SEQUENCES = 4
NUM_TOKENS = 512


def task() -> Task:
    return Task(
        name="gpt2_small",
        model=lambda: GPT(vocabulary=VOCABULARY, max_positions=1024, num_layers=12, width=768, num_heads=12),
        batch=partial(random_text, VOCABULARY, NUM_SEQUENCES, NUM_TOKENS),
        loss=next_token_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1),
        batch_size=NUM_SEQUENCES,
        clip_norm=1.0,
    )
