"""`random`: strategies from the whole space, drawn by its priors."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from autosync.datasets.schema import Record
from autosync.search.candidates import Candidate
from autosync.search.proposers.history import HistoryReader, new_ones, samples, seen_ids
from autosync.search.proposers.interface import Ground


class Sampled:
    """The proposer `random`. It ignores measurements."""

    name = "random"
    round_size = 1

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._reader = HistoryReader()

    def propose(
        self, history: Sequence[Record], count: int, rng: random.Random, *, taken: Collection[str] = ()
    ) -> list[Candidate]:
        seen = seen_ids(self._reader.outcomes(history), taken)
        return new_ones(self._ground, samples(self._ground, rng), count, seen)
