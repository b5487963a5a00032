"""BERT-small (4 layers of width 512; Turc et al., 2019), pre-training on random sentences.

It has 29,058,876 parameters: 28,763,648 in embeddings, encoder and pooler (the published count), the rest in the two
heads. To tune it:

    autosync tune examples/zoo/bert_small.py --cluster configs/clusters/local-2.yaml
"""

from functools import partial

import torch
from _bert import Bert, pretraining_batch, pretraining_loss

from autosync import Task

NUM_SEQUENCES = 32
NUM_TOKENS = 128


def task() -> Task:
    return Task(
        name="bert_small",
        model=lambda: Bert(num_layers=4, width=512, num_heads=8),
        batch=partial(pretraining_batch, NUM_SEQUENCES, NUM_TOKENS),
        loss=pretraining_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01),
        batch_size=NUM_SEQUENCES,
        clip_norm=1.0,
    )
