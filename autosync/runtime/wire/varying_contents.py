"""Contents that are not added as numbers, between a rank's memory and the wire: rows, factors and the bytes of codecs.

The size of rows and factors is known at run time only. Encoded contents are bytes already: those of all regions of a
transfer, one after another, kept under the first region.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from autosync.plan.types import Plan, Transfer
from autosync.runtime.local.factors import Pair, pack_factors, unpack_factors
from autosync.runtime.local.sparse_rows import Rows, pack_rows, unpack_rows
from autosync.runtime.memory.regions import Memory

CONTENT_KINDS = frozenset({"rows", "new_rows", "factors"})


def are_contents(plan: Plan, transfer: Transfer) -> bool:
    """Whether a transfer moves contents, and not numbers to be added."""
    region = plan.regions[transfer.regions[0]]
    # Cast gradients are still numbers, and are summed on the way.
    return region.kind in CONTENT_KINDS or (region.kind == "encoded" and region.dtype == "uint8")


class Contents:
    """One rank's side of transfers of contents: packs its contribution into bytes, and unpacks what arrives."""

    def __init__(self, plan: Plan, memory: Memory, *, rank: int) -> None:
        self._plan = plan
        self._memory = memory
        self._rank = rank

    def outgoing(self, transfer: Transfer, group: Sequence[int], iteration: int) -> torch.Tensor:
        """Return this rank's contribution as bytes; no bytes if it only collects or receives."""
        if not self._brings(transfer, group, self._rank):
            return torch.empty(0, dtype=torch.uint8)
        region = transfer.regions[0]
        if self._plan.regions[region].kind == "encoded":
            return self._memory.view(transfer.regions, iteration)
        content = self._memory.get(region, iteration)
        return pack_rows(content) if isinstance(content, Rows) else pack_factors(content)

    def arrived(
        self, transfer: Transfer, group: Sequence[int], iteration: int, buffers: Sequence[torch.Tensor]
    ) -> None:
        """Keep what a transfer brought, one buffer for each member: a list, or the root's content of a broadcast."""
        region = transfer.regions[0]
        found = [
            self._unpacked(region, buffer)
            for member, buffer in zip(group, buffers, strict=True)
            if self._brings(transfer, group, member)
        ]
        self._memory.put(region, iteration, found[0] if transfer.collective == "broadcast" else found)

    def _brings(self, transfer: Transfer, group: Sequence[int], rank: int) -> bool:
        """Whether a member contributes: a broadcast's root, and in a gather each rank that has gradients."""
        if transfer.collective == "broadcast":
            return rank == group[0]
        return self._plan.ranks[rank].role == "worker"

    def _unpacked(self, index: int, buffer: torch.Tensor) -> Rows | Pair | torch.Tensor:
        region = self._plan.regions[index]
        if region.kind == "encoded":
            return buffer
        part = self._plan.parts[region.part]
        # A rank that only passes gradients on has no parameter to take the type from.
        dtype = getattr(torch, part.variable.dtype)
        return unpack_factors(buffer, part, dtype) if region.kind == "factors" else unpack_rows(buffer, part, dtype)
