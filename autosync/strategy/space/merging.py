"""Draws how parts are merged into messages."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from autosync.strategy.space.chance import draw_weighted
from autosync.strategy.space.drafts import DraftPiece

MergeStyle = Literal["alone", "equal_bytes", "random_bounds", "scattered"]

MERGE_WEIGHTS: dict[MergeStyle, float] = {
    "alone": 0.15,
    "equal_bytes": 0.55,
    "random_bounds": 0.15,
    "scattered": 0.15,
}
"""`equal_bytes`: runs of parts in ready order that make about the same bytes, which AutoSync found best;
`random_bounds`: runs cut anywhere; `scattered`: each part in any message."""


@dataclass(frozen=True, slots=True)
class Merging:
    """The way in which a step merges parts. n parts make n^`exponent` messages, so few and many are equally likely."""

    style: MergeStyle
    exponent: float

    @classmethod
    def draw(cls, rng: random.Random) -> Merging:
        """Draw a style, and an exponent between 0 (one message) and 1 (as many messages as parts)."""
        return cls(draw_weighted(rng, MERGE_WEIGHTS), rng.random())

    def merge(self, rng: random.Random, pieces: Sequence[DraftPiece]) -> list[list[DraftPiece]]:
        """Divide pieces into groups, none of them empty."""
        num_pieces = len(pieces)
        num_groups = max(1, min(num_pieces, round(num_pieces**self.exponent)))
        match self.style:
            case "alone":
                return [[piece] for piece in pieces]
            case "equal_bytes":
                return _equal_bytes(pieces, num_groups)
            case "random_bounds":
                bounds = [0, *sorted(rng.sample(range(1, num_pieces), num_groups - 1)), num_pieces]
                return [list(pieces[begin:end]) for begin, end in itertools.pairwise(bounds)]
            case "scattered":
                groups: list[list[DraftPiece]] = [[] for _ in range(num_groups)]
                for piece in pieces:
                    groups[int(rng.random() * num_groups)].append(piece)
                return [group for group in groups if group]


def _equal_bytes(pieces: Sequence[DraftPiece], num_groups: int) -> list[list[DraftPiece]]:
    total = sum(piece.num_bytes for piece in pieces) or 1.0
    groups: list[list[DraftPiece]] = [[] for _ in range(num_groups)]
    before = 0.0
    for piece in pieces:
        # A piece belongs to the group in which its middle lies.
        index = int((before + piece.num_bytes / 2) * num_groups / total)
        groups[min(index, num_groups - 1)].append(piece)
        before += piece.num_bytes
    return [group for group in groups if group]
