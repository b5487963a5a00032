"""Merges one set from each rank into the union of all, by short messages between ranks.

In round k, a rank sends all it knows to the rank 2^k places after it. Members may be merged twice, so after log2 n
rounds, for any n, every rank knows everything.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from autosync.runtime.wire.exchange import finish
from autosync.runtime.wire.links import Links


class Bitmaps:
    """Merges sets of names, which are the same on all ranks and in the same order, as bitmaps.

    `tag` is that of the messages; every rank takes part in each union.
    """

    def __init__(self, links: Links, names: Sequence[str], *, num_ranks: int, tag: int) -> None:
        self._links = links
        self._names = tuple(names)
        self._bits = {name: 1 << number for number, name in enumerate(names)}
        self._num_bytes = (len(names) + 7) // 8
        self._num_ranks = num_ranks
        self._tag = tag

    def union(self, mine: Collection[str]) -> list[str]:
        """Return the names that at least one rank has given, in their order."""
        known = 0
        for name in mine:
            known |= self._bits[name]
        rank, distance = self._links.rank, 1
        while distance < self._num_ranks:
            known |= self._swap(known, (rank + distance) % self._num_ranks, (rank - distance) % self._num_ranks)
            distance *= 2
        return [name for name, bit in self._bits.items() if known & bit] if known else []

    def _swap(self, known: int, destination: int, source: int) -> int:
        """Send what this rank knows to one rank; return what another one knows."""
        outgoing = torch.frombuffer(bytearray(known.to_bytes(self._num_bytes, "little")), dtype=torch.uint8)
        incoming = torch.empty_like(outgoing)
        work = self._links.send(outgoing, destination, self._tag)
        finish(self._links.receive(incoming, source, self._tag), self._links, "from", source)
        finish(work, self._links, "to", destination)
        return int.from_bytes(incoming.numpy().tobytes(), "little")
