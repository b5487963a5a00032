"""BERT-tiny (2 layers of width 128; Turc et al., 2019), pre-training on random sentences.

It has 4,433,468 parameters: 4,385,920 in embeddings, encoder and pooler (the published count), the rest in the two
heads. Nearly all of it is one embedding with a dense gradient. To tune it:

    autosync tune examples/zoo/bert_tiny.py --cluster configs/clusters/local-2.yaml
"""

from functools import partial

import torch
from _bert import Bert, pretraining_batch, pretraining_loss

from autosync import Task

NUM_SEQUENCES = 32
NUM_TOKENS = 128


def task() -> Task:
    return Task(
        name="bert_tiny",
        model=lambda: Bert(num_layers=2, width=128, num_heads=2),
        batch=partial(pretraining_batch, NUM_SEQUENCES, NUM_TOKENS),
        loss=pretraining_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01),
        batch_size=NUM_SEQUENCES,
        clip_norm=1.0,
    )
