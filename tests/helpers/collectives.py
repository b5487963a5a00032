"""What a collective comes to, by hand: buffers of all its members, side by side in one process."""

from __future__ import annotations

import torch

from autosync.plan.expansion import chunk_bounds
from autosync.plan.shards import shard_bounds, shard_weights
from autosync.plan.types import Transfer


@torch.no_grad()
def carry_out(transfer: Transfer, buffers: list[torch.Tensor]) -> None:
    """What a transfer of numbers comes to."""
    total = torch.stack(buffers).sum(0)
    bounds = shard_bounds(len(total), len(buffers), shard_weights(transfer.algorithm))
    owned = torch.cat([b[bounds[i] : bounds[i + 1]] for i, b in enumerate(buffers)])
    for position, buffer in enumerate(buffers):
        mine = slice(bounds[position], bounds[position + 1])
        match transfer.collective:
            case "all_reduce":
                buffer.copy_(total)
            case "reduce":
                # What is left elsewhere is nobody's to use.
                buffer.copy_(total if position == 0 else torch.full_like(total, float("nan")))
            case "broadcast":
                buffer.copy_(buffers[0].clone())
            case "reduce_scatter":
                buffer.fill_(float("nan"))
                buffer[mine] = total[mine]
            case "all_gather":
                buffer.copy_(owned)


def chunk(buffer: torch.Tensor, group: tuple[int, ...], rank: int) -> torch.Tensor:
    """A rank's own chunk of a buffer that is split among a group."""
    bounds = chunk_bounds(len(buffer), len(group))
    position = group.index(rank)
    return buffer[bounds[position] : bounds[position + 1]]
