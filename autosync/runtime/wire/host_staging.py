"""Host memory for transfers of data on a device. The data is copied into it before a transfer, and back after it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from autosync.plan.shards import shard_bounds
from autosync.plan.types import Collective, Weights


class Staging:
    """The host memory of one lane, for one transfer at a time; it is as large as the largest transfer needs.

    With `pins` the memory is locked in place, so that a device copies directly from it and to it.
    """

    def __init__(self, *, pins: bool) -> None:
        self._pins = pins
        self._bytes = torch.empty(0, dtype=torch.uint8)

    @contextlib.contextmanager
    def copied(
        self,
        buffer: torch.Tensor,
        collective: Collective,
        *,
        num_members: int,
        position: int,
        weights: Weights = (),
    ) -> Iterator[torch.Tensor]:
        """Yield a copy of `buffer` in host memory for a transfer; copy the result back afterwards.

        `weights` are those of the members' shards.
        """
        host = self._memory_like(buffer)
        brought, left = shares(collective, len(buffer), num_members=num_members, position=position, weights=weights)
        host[brought].copy_(buffer[brought])
        yield host
        buffer[left].copy_(host[left])

    def _memory_like(self, buffer: torch.Tensor) -> torch.Tensor:
        num_bytes = buffer.numel() * buffer.element_size()
        if len(self._bytes) < num_bytes:
            self._bytes = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=self._pins)
        return self._bytes[:num_bytes].view(buffer.dtype)


def shares(
    collective: Collective, num_elements: int, *, num_members: int, position: int, weights: Weights = ()
) -> tuple[slice, slice]:
    """Return the elements that a member contributes to a collective, and the elements of the result that it gets."""
    bounds = shard_bounds(num_elements, num_members, weights)
    everything, nothing, mine = slice(0, num_elements), slice(0), slice(bounds[position], bounds[position + 1])
    match collective:
        case "all_reduce":
            return everything, everything
        case "reduce":
            return everything, everything if position == 0 else nothing
        case "broadcast":
            return (everything, nothing) if position == 0 else (nothing, everything)
        case "reduce_scatter":
            return everything, mine
        case "all_gather":
            return mine, everything
    raise ValueError(f"{collective} moves contents, not a buffer")
