"""Gathers at what rates the hosts of a training are served, from the reads of its ranks."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from autosync.errors import OperationError
from autosync.inputs.fairness import MIN_MEASUREMENTS
from autosync.specs.rank_variables import NODE_VARIABLE

NUM_WINDOWS = 10
"""Reads become so many rates, one after the other, so that their noise shows."""

_NAME_BYTES = 128

Read = tuple[int, float]
"""The bytes that a step's examples took, and the seconds of all requests for them."""


def window_rates(reads: Sequence[Read]) -> list[float]:
    """Return the bytes a second of each window of consecutive reads; fewer windows where there are few reads."""
    reads = [one for one in reads if one[0] > 0 and one[1] > 0]
    count = min(NUM_WINDOWS, len(reads))
    ends = [len(reads) * number // count for number in range(count + 1)] if count else []
    windows = [reads[begin:end] for begin, end in pairwise(ends)]
    return [sum(size for size, _ in one) / sum(seconds for _, seconds in one) for one in windows]


def of_all_ranks(values: Sequence[float], group: dist.ProcessGroup | None = None) -> list[list[float]]:
    """Return the numbers of all ranks, from those of this rank. All ranks of the group give equally many."""
    if not (dist.is_available() and dist.is_initialized()):
        return [list(values)]
    mine = torch.tensor(list(values), dtype=torch.float64, device=_device(group))
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, mine, group=group)
    return [one.tolist() for one in found]


class HostRates(NamedTuple):
    """The rates of each host, which are those of its ranks added up, and the number of its ranks."""

    rates: Mapping[str, list[float]]
    num_ranks: Mapping[str, int]


def rates_of_hosts(rates: Sequence[float], group: dist.ProcessGroup | None = None) -> HostRates:
    """Return the rates of all hosts, from those of this rank. All ranks of the group call it together."""
    padded = [*rates, *[0.0] * (NUM_WINDOWS - len(rates))]
    all_rates = of_all_ranks([float(len(rates)), *padded], group)
    names = of_all_ranks(list(map(float, _host_name())), group)
    found: dict[str, list[float]] = {}
    num_ranks = Counter[str]()
    for rank, (one, its_name) in enumerate(zip(all_rates, names, strict=True)):
        count, *values = one
        host = bytes(map(int, its_name)).rstrip(b"\0").decode(errors="replace")
        if count < MIN_MEASUREMENTS:
            raise OperationError(
                f"rank {rank} on {host} has read in {int(count)} steps through autosync: {MIN_MEASUREMENTS} or more "
                "are needed (compare hosts later, or read from TarShards)"
            )
        mine = values[: int(count)]
        num_ranks[host] += 1
        before = found.get(host)
        found[host] = mine if before is None else [a + b for a, b in zip(before, mine, strict=False)]
    return HostRates(found, num_ranks)


def _device(group: dist.ProcessGroup | None) -> torch.device | None:
    """Return where a group without CPUs, such as NCCL's, wants its numbers."""
    # The name of a group's backend does not tell: it is "undefined" if torch has chosen one.
    asked: Any = group or dist.group.WORLD
    kinds = {device.type for device in asked._device_types}  # noqa: SLF001 - torch has no other way
    return None if "cpu" in kinds else torch.device("cuda", torch.cuda.current_device())


def _host_name() -> bytes:
    """Return the name of this rank's node, as the launcher gave it, or else its host name."""
    name = os.environ.get(NODE_VARIABLE) or socket.gethostname()
    return name.encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")
