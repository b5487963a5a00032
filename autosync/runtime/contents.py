"""Contents whose size is known at run time only, between a rank's memory and the wire: rows and factors as bytes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from autosync.plan.types import Plan, Transfer
from autosync.runtime.factors import Pair, pack_factors, unpack_factors
from autosync.runtime.memory import Memory
from autosync.runtime.sparse import Rows, pack_rows, unpack_rows

CONTENT_KINDS = frozenset({"rows", "new_rows", "factors"})


class Contents:
    """One rank's side of transfers of contents: what it brings as bytes, and what has arrived as numbers."""

    def __init__(self, plan: Plan, memory: Memory, *, rank: int) -> None:
        self._plan = plan
        self._memory = memory
        self._rank = rank

    def outgoing(self, transfer: Transfer, group: Sequence[int], iteration: int) -> torch.Tensor:
        """What this rank brings; no bytes where it only collects or receives."""
        (region,) = transfer.regions
        if not self._brings(transfer, group, self._rank):
            return torch.empty(0, dtype=torch.uint8)
        content = self._memory.get(region, iteration)
        return pack_rows(content) if isinstance(content, Rows) else pack_factors(content)

    def arrived(
        self, transfer: Transfer, group: Sequence[int], iteration: int, buffers: Sequence[torch.Tensor]
    ) -> None:
        """Keep what a transfer brought, one buffer a member in their order: a list, but after a broadcast the one."""
        (region,) = transfer.regions
        found = [
            self._unpacked(region, buffer)
            for member, buffer in zip(group, buffers, strict=True)
            if self._brings(transfer, group, member)
        ]
        self._memory.put(region, iteration, found[0] if transfer.collective == "broadcast" else found)

    def _brings(self, transfer: Transfer, group: Sequence[int], rank: int) -> bool:
        """Whether a member brings something: a broadcast's root, and in a gather whoever has gradients."""
        if transfer.collective == "broadcast":
            return rank == group[0]
        return self._plan.ranks[rank].role == "worker"

    def _unpacked(self, index: int, buffer: torch.Tensor) -> Rows | Pair:
        region = self._plan.regions[index]
        part = self._plan.parts[region.part]
        # A rank that hands gradients on to where they are updated has no parameter.
        dtype = getattr(torch, part.variable.dtype)
        return unpack_factors(buffer, part, dtype) if region.kind == "factors" else unpack_rows(buffer, part, dtype)
