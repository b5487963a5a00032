"""Neural collaborative filtering (NeuMF; He et al., 2017) at the size of MovieLens-20M.

It has 138,493 users, 26,744 items and MLPerf's layer sizes, with a factorisation of width 64 beside a multi-layer
perceptron of 256, 256, 128, 64: 31,832,577 parameters. A step touches few rows of the embeddings, so their gradients
are sparse: plain SGD accepts them, Adam does not. To tune it:

    autosync tune examples/zoo/ncf.py --cluster configs/clusters/local-2.yaml
"""

from functools import partial

import torch
from _ncf import NeuMF, rating_loss, ratings

from autosync import Task

NUM_USERS = 138_493
NUM_ITEMS = 26_744

BATCH_SIZE = 4096


def task() -> Task:
    return Task(
        name="ncf",
        model=lambda: NeuMF(num_users=NUM_USERS, num_items=NUM_ITEMS, factor_width=64, mlp_widths=(256, 256, 128, 64)),
        batch=partial(ratings, NUM_USERS, NUM_ITEMS, BATCH_SIZE),
        loss=rating_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        batch_size=BATCH_SIZE,
    )
