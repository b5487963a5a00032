"""Sums gradients that came although no rank waited for them, when backward has ended and all ranks know of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from autosync.runtime.wire.exchange import Exchange
from autosync.runtime.wire.flow_control import Flow
from autosync.runtime.wire.links import Links
from autosync.runtime.wire.transfer_pieces import compile_pieces


class LateGradients:
    """Sums tensors over all workers, in a ring. `tag` is that of the messages."""

    def __init__(self, links: Links, *, num_workers: int, tag: int) -> None:
        self._links = links
        self._num_workers = num_workers
        self._tag = tag
        self._exchange = Exchange(links, Flow())

    @torch.no_grad()
    def sum_in_place(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace each tensor by its sum over all workers. They are flat, and of the same types and sizes on each."""
        by_type: dict[torch.dtype, list[torch.Tensor]] = defaultdict(list)
        for one in tensors:
            by_type[one.dtype].append(one)
        for found in by_type.values():
            values = found[0] if len(found) == 1 else torch.cat(found)
            self._sum(values)
            if len(found) > 1:
                torch._foreach_copy_(found, list(torch.split(values, [len(one) for one in found])))

    def _sum(self, values: torch.Tensor) -> None:
        pieces = compile_pieces(
            "all_reduce",
            "ring",
            num_members=self._num_workers,
            position=self._links.rank,
            num_elements=len(values),
            item_bytes=values.element_size(),
        )
        self._exchange.run(pieces, values, members=range(self._num_workers), tag=self._tag, priority=0)
