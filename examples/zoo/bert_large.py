"""BERT-large (uncased; Devlin et al., 2018), pre-training on random sentences.

It has 336,226,108 parameters: 335,141,888 in embeddings, encoder and pooler (the published count), the rest in the two
heads. To tune it:

    autosync tune examples/zoo/bert_large.py --cluster configs/clusters/local-2.yaml
"""

from functools import partial

import torch
from _bert import Bert, pretraining_batch, pretraining_loss

from autosync import Task

NUM_SEQUENCES = 8
NUM_TOKENS = 128


def task() -> Task:
    return Task(
        name="bert_large",
        model=lambda: Bert(num_layers=24, width=1024, num_heads=16),
        batch=partial(pretraining_batch, NUM_SEQUENCES, NUM_TOKENS),
        loss=pretraining_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01),
        batch_size=NUM_SEQUENCES,
        clip_norm=1.0,
    )
