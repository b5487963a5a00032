"""Neural collaborative filtering (NeuMF; He et al., 2017) at the size of MovieLens-1M.

It has 6,040 users and 3,706 items, with a factorisation of width 64 beside a multi-layer perceptron of 256, 128, 64:
1,912,513 parameters. A step touches about a tenth of the rows, so their gradients are sparse. To tune it:

    autosync tune examples/zoo/ncf_small.py --cluster configs/clusters/local-2.yaml
"""

from functools import partial

import torch
from _ncf import NeuMF, rating_loss, ratings

from autosync import Task

NUM_USERS = 6040
NUM_ITEMS = 3706

BATCH_SIZE = 1024


def task() -> Task:
    return Task(
        name="ncf_small",
        model=lambda: NeuMF(num_users=NUM_USERS, num_items=NUM_ITEMS, factor_width=64, mlp_widths=(256, 128, 64)),
        batch=partial(ratings, NUM_USERS, NUM_ITEMS, BATCH_SIZE),
        loss=rating_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        batch_size=BATCH_SIZE,
    )
