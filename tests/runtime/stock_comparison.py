"""Gradients of a model by stock DDP and by buckets on torch's Reducer, and what differs between them."""

import copy
import datetime as dt
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from stock_models import Loss, made
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from autosync.runtime.stock.buckets import StockBuckets
from autosync.runtime.stock.layouts import Layouts
from autosync.runtime.stock.reducer import StockReducer

_NUMBERS = itertools.count()


def lots(seed: int) -> torch.Generator:
    """Another batch on each rank."""
    return torch.Generator().manual_seed(100 * seed + dist.get_rank())


def stock_of(model: nn.Module, buckets: Sequence[Sequence[int]]) -> StockBuckets:
    """Buckets with the facts that a plan would give."""
    parameters = list(model.parameters())
    sizes: dict[torch.dtype, list[int]] = {}
    for bucket in buckets:
        num_bytes = sum(parameters[i].numel() * parameters[i].element_size() for i in bucket)
        sizes.setdefault(parameters[bucket[0]].dtype, []).append(num_bytes)
    columns = range(max(map(len, sizes.values())))
    limits = tuple(min(one[k] for one in sizes.values() if k < len(one)) for k in columns)
    return StockBuckets(buckets=tuple(map(tuple, buckets)), limits_bytes=limits)


def layouts(parameters: dict[str, nn.Parameter]) -> Layouts:
    """Layouts that no other reducer of this process shares."""
    base: Any = dist.distributed_c10d._get_default_store()
    store = dist.PrefixStore(f"layouts {next(_NUMBERS)}", base)  # type: ignore[attr-defined]
    patience = dt.timedelta(seconds=10)
    return Layouts(parameters, store, rank=dist.get_rank(), num_ranks=dist.get_world_size(), patience=patience)


@contextmanager
def reducing(model: nn.Module, buckets: Sequence[Sequence[int]], **options: Any) -> Iterator[StockReducer]:
    group: Any = dist.group.WORLD
    parameters = dict(model.named_parameters())
    reducer = StockReducer(model, parameters, stock_of(model, buckets), group, layouts(parameters), **options)
    try:
        yield reducer
    finally:
        reducer.close()


def by_ddp(name: str) -> tuple[Any, DistributedDataParallel, Loss, list[list[int]]]:
    """A model under DDP of small buckets, rebuilt as DDP does, and these buckets."""
    model, loss = made(name)
    # Buckets of 300 bytes: several of several variables. DDP's own knob counts in MiB, and takes fractions of them.
    ddp = DistributedDataParallel(model, bucket_cap_mb=300 / 2**20)
    for step in range(2):
        loss(ddp, lots(step)).backward()
    data: Any = ddp.logger
    data.set_runtime_stats_and_log()
    words = data._get_ddp_logging_data().strs_map["rebuilt_per_bucket_param_indices"]
    ddp.zero_grad()
    return model, ddp, loss, [[int(number) for number in bucket.split()] for bucket in words.split(",")]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def differing(found: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    """Gradients that are not bit for bit the same, with their layout."""
    if found.keys() != expected.keys():
        return ["other gradients"]
    return [name for name, value in found.items() if not _is_same(value, expected[name])]


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.stride() == other.stride() and torch.equal(one, other)


def compared(name: str, microsteps: int = 1) -> dict[str, Any]:
    """Three steps of gradients by DDP and by us, some microsteps each: what differs, and how many buckets."""
    model, ddp, loss, buckets = by_ddp(name)
    expected = []
    for step in range(3):
        ddp.zero_grad()
        with ddp.no_sync():
            for micro in range(1, microsteps):
                loss(ddp, lots(10 * step + micro)).backward()
        loss(ddp, lots(10 * step)).backward()
        expected.append(gradients(model))
    found = []
    ours, _ = made(name)
    with reducing(ours, buckets) as reducer:
        for step in range(3):
            ours.zero_grad()
            reducer.syncs = False
            for micro in range(1, microsteps):
                loss(ours, lots(10 * step + micro)).backward()
            reducer.syncs = True
            loss(ours, lots(10 * step)).backward()
            found.append(gradients(ours))
    return {
        "differing": [name for one, other in zip(found, expected, strict=True) for name in differing(one, other)],
        "num_buckets": len(buckets),
        "num_merged": sum(len(bucket) > 1 for bucket in buckets),
    }


def own(model: nn.Module, loss: Loss, seed: int) -> dict[str, Tensor]:
    """A rank's own gradients of a batch: nothing is synchronised and nothing kept."""
    alone = copy.deepcopy(model)
    alone.zero_grad()
    loss(alone, lots(seed)).backward()
    return gradients(alone)


def averaged(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Means over the ranks, by torch's own collective."""
    for value in values.values():
        dist.all_reduce(value)
        value.div_(dist.get_world_size())
    return values


def far(found: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    return [name for name, value in expected.items() if not torch.allclose(found[name], value, rtol=1e-4, atol=1e-6)]
