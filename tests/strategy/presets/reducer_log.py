"""Run as a script, one process a rank: train small models under the real DistributedDataParallel and print what it did.

Arguments: RANK WORLD_SIZE FOLDER. Rank 0 prints one JSON object a line: the parameters in the order of declaration, the
order in which their gradients became ready, and the buckets, as the Reducer logged them.
"""

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn


class Block(nn.Module):
    """A residual block: its norm is declared last and used first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.down(torch.relu(self.up(self.norm(inputs))))
        return inputs + hidden


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(256, 1000)  # declared first, used last
        self.blocks = nn.Sequential(*(Block(256) for _ in range(6)))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.blocks(inputs))
        return result


class Mixed(nn.Module):
    """Two dtypes, taking turns."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(300, 300, dtype=torch.float64 if index % 3 == 1 else torch.float32) for index in range(9)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = inputs
        for layer in self.layers:
            hidden = layer(hidden.to(layer.weight.dtype))
        return hidden


class Tied(nn.Module):
    """An embedding that is the output layer too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(900, 256)
        self.body = nn.Linear(256, 256)
        self.output = nn.Linear(256, 900, bias=True)
        self.output.weight = self.embedding.weight

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.output(torch.relu(self.body(self.embedding(indices))))
        return result


class Tables(nn.Module):
    """Two tables, with sparse gradients or with dense ones, among dense layers, one of them frozen."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.users = nn.Embedding(50, 64, sparse=sparse)
        self.first = nn.Linear(128, 3000)
        self.frozen = nn.Linear(3000, 3000)
        self.items = nn.Embedding(70, 64, sparse=sparse)
        self.last = nn.Linear(3000, 500)
        self.frozen.requires_grad_(requires_grad=False)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        hidden = self.first(torch.cat([self.users(indices), self.items(indices)], dim=-1))
        result: torch.Tensor = self.last(self.frozen(hidden))
        return result


def _floats() -> torch.Tensor:
    return torch.randn(2, 256)


def _indices() -> torch.Tensor:
    return torch.tensor([1, 4, 4])


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor], dict[str, Any]]] = {
    "residual": (Residual, _floats, {}),
    "residual, cap of 2 MiB": (Residual, _floats, {"bucket_cap_mb": 2}),
    "residual, cap of 25 MiB": (Residual, _floats, {"bucket_cap_mb": 25}),
    "residual, find unused": (Residual, _floats, {"find_unused_parameters": True}),
    "mixed": (Mixed, lambda: torch.randn(2, 300), {}),
    "mixed, cap of 1 MiB": (Mixed, lambda: torch.randn(2, 300), {"bucket_cap_mb": 1}),
    "tied": (Tied, _indices, {}),
    "sparse": (partial(Tables, sparse=True), _indices, {}),
    "sparse, cap of 1 MiB": (partial(Tables, sparse=True), _indices, {"bucket_cap_mb": 1}),
    "dense tables": (partial(Tables, sparse=False), _indices, {}),
    "wide": (lambda: nn.Sequential(*(nn.Linear(1500, 1500) for _ in range(5))), lambda: torch.randn(1, 1500), {}),
}


def log_of(name: str) -> dict[str, Any]:
    """What DistributedDataParallel did with one case."""
    model, inputs, settings = CASES[name]
    module = model()
    data_parallel = nn.parallel.DistributedDataParallel(module, **settings)
    first = data_parallel.logger._get_ddp_logging_data().strs_map
    for _ in range(3):
        data_parallel(inputs()).sum().backward()
    later = data_parallel.logger._get_ddp_logging_data().strs_map
    tables = {id(m.weight): m for m in module.modules() if isinstance(m, nn.Embedding)}
    return {
        "case": name,
        "parameters": [
            {
                "name": parameter_name,
                "shape": list(parameter.shape),
                "dtype": str(parameter.dtype).removeprefix("torch."),
                "embedding": id(parameter) in tables,
                "sparse": parameter.grad is not None and parameter.grad.is_sparse,
            }
            for parameter_name, parameter in module.named_parameters()
            if parameter.requires_grad
        ],
        "ready": _numbers(later["prev_iteration_grad_ready_order_indices"], ", "),
        "first_bucket_sizes": _numbers(first["bucket_sizes"], ", "),
        "rebuilt": [
            _numbers(bucket, " ") for bucket in later.get("rebuilt_per_bucket_param_indices", "").split(", ") if bucket
        ],
    }


def _numbers(text: str, separator: str) -> list[int]:
    return [int(number) for number in text.split(separator)]


def main(rank: int, world_size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=world_size)
    for name in CASES:
        log = log_of(name)
        if rank == 0:
            print(json.dumps(log), flush=True)  # noqa: T201 a script reports by printing
    distributed.destroy_process_group()
    # torch's threads of DDP's group meet the end of the interpreter otherwise: see emit/plain_ddp.py.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
