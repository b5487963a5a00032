"""DLRM (Naumov et al., 2019) at the size of the Criteo Kaggle data, with tables of at most 200,000 rows.

This is the published configuration for that data: bottom 13-512-256-64-16, tables of width 16, pairwise dot products,
top 367-512-256-1. The cap (which hashing the ids would also give) reduces the tables from 33,762,577 rows to 1,483,115:
24,205,825 parameters in all. Gradients of the tables are sparse. To tune it:

    autosync tune examples/zoo/dlrm.py --cluster configs/clusters/local-2.yaml
"""

from itertools import pairwise

import torch
from _blocks import zipf_ids
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

# Distinct values of the 26 categorical features, in the order of the data.
CATEGORIES = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
MAX_ROWS = 200_000
TABLE_ROWS = tuple(min(categories, MAX_ROWS) for categories in CATEGORIES)
NUM_VECTORS = len(TABLE_ROWS) + 1
NUM_PAIRS = NUM_VECTORS * (NUM_VECTORS - 1) // 2
WIDTH = 16
BOTTOM = (13, 512, 256, 64, WIDTH)
TOP = (NUM_PAIRS + WIDTH, 512, 256, 1)

BATCH_SIZE = 2048

Batch = tuple[Tensor, Tensor, Tensor]


def perceptron(widths: tuple[int, ...]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return layers


class DLRM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, WIDTH, sparse=True) for rows in TABLE_ROWS)
        self.bottom = nn.Sequential(*perceptron(BOTTOM))
        self.top = nn.Sequential(*perceptron(TOP)[:-1])
        for rows, table in zip(TABLE_ROWS, self.tables, strict=True):
            nn.init.uniform_(table.get_parameter("weight"), -(rows**-0.5), rows**-0.5)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        rows = [table(ids) for table, ids in zip(self.tables, categories.unbind(1), strict=True)]
        vectors = torch.stack((dense, *rows), dim=1)
        products = vectors @ vectors.transpose(1, 2)
        first, second = torch.tril_indices(NUM_VECTORS, NUM_VECTORS, offset=-1, device=products.device)
        logits: Tensor = self.top(torch.cat((dense, products[:, first, second]), dim=1))
        return logits.squeeze(1)


def batch(generator: torch.Generator) -> Batch:
    device = generator.device
    numbers = torch.rand(BATCH_SIZE, BOTTOM[0], generator=generator, device=device)
    columns = [zipf_ids(rows, (BATCH_SIZE,), generator) for rows in TABLE_ROWS]
    clicked = torch.rand(BATCH_SIZE, generator=generator, device=device) < 0.25
    return numbers, torch.stack(columns, dim=1), clicked.float()


def loss(model: nn.Module, batch: Batch) -> Tensor:
    numbers, categories, clicked = batch
    return functional.binary_cross_entropy_with_logits(model(numbers, categories), clicked)


def task() -> Task:
    return Task(
        name="dlrm",
        model=DLRM,
        batch=batch,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=BATCH_SIZE,
    )
