"""The rounds in which members exchange the sizes of contents: rows, factors and some encoded gradients.

These sizes are known only at run time. Each round waits behind other traffic on the links. `runtime.wire.exchange` has
the rounds of our own algorithms, `runtime.wire.native_collectives` those of the backend.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from autosync.plan.expansion import Move
from autosync.plan.types import Algorithm, Collective

SIZE_BYTES = 8.0

CONTENT_BYTES = 1
"""The item size of contents. Numbers have larger items."""


def moves_of_sizes(collective: Collective, algorithm: Algorithm, size: int) -> list[Move]:
    """Return the moves, in rounds below 0, before a transfer of contents among `size` members. Numbers need none."""
    if collective in ("gather_v", "all_gather_v") and algorithm == "native":
        # gloo's gathers send around a ring.
        rounds = itertools.product(range(1 - size, 0), range(size))
        return [Move(number, one, (one + 1) % size, 0, 0, adds=False) for number, one in rounds]
    pairs: Iterable[tuple[int, int]] = ()
    if collective == "all_gather_v":
        pairs = itertools.permutations(range(size), 2)
    elif collective == "gather_v":
        pairs = ((one, 0) for one in range(1, size))
    elif (collective, algorithm) == ("broadcast", "star"):
        pairs = ((0, one) for one in range(1, size))
    return [Move(-1, source, destination, 0, 0, adds=False) for source, destination in pairs]
