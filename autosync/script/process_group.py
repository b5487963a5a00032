"""Checks that a script's process group has the ranks with which it was started.

A framework that counts nodes and ranks for itself may number them wrongly. gloo then ends with "rank < size", or waits
for ranks that do not exist.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from autosync.errors import OperationError

NAME = "init_process_group"


@contextlib.contextmanager
def checked_process_group() -> Iterator[None]:
    """Have torch's `init_process_group` refuse a rank or a number of ranks that the launcher has not given.

    Only the first group is checked: a script may make another one after its training, on one rank for example.
    """
    given = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE") if name in os.environ}
    stock = distributed_c10d.init_process_group
    signature = inspect.signature(stock)

    @functools.wraps(stock)
    def init_process_group(*arguments: Any, **options: Any) -> Any:
        with contextlib.suppress(TypeError):
            # Torch itself tells what is wrong with other arguments.
            bound = signature.bind(*arguments, **options).arguments
            refuse_other_ranks(bound.get("rank", -1), bound.get("world_size", -1), given)
        found = stock(*arguments, **options)
        put(NAME, stock)
        return found

    try:
        put(NAME, init_process_group)
        yield
    finally:
        put(NAME, stock)


def put(name: str, function: Callable[..., Any]) -> None:
    """Give a function of torch's process groups this name, in both modules that have it."""
    for owner in (dist, distributed_c10d):
        setattr(owner, name, function)


def refuse_other_ranks(rank: int, num_ranks: int, given: Mapping[str, str]) -> None:
    """Refuse a script's rank and number of ranks if the launcher has given others; -1 leaves them to the launcher."""
    if "RANK" not in given or "WORLD_SIZE" not in given:
        return
    own_rank, own_num_ranks = int(given["RANK"]), int(given["WORLD_SIZE"])
    if rank in (-1, own_rank) and num_ranks in (-1, own_num_ranks):
        return
    per_node = int(given.get("LOCAL_WORLD_SIZE", 1))
    num_nodes = own_num_ranks // per_node
    raise OperationError(
        f"the script calls {NAME} as rank {rank} of {num_ranks}, and it was started as rank {own_rank} of "
        f"{own_num_ranks} (nodes: {num_nodes}, ranks on each: {per_node}; with Lightning "
        f"Trainer(num_nodes={num_nodes}, devices={per_node}))"
    )
