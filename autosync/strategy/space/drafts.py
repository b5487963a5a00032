"""Drafts: messages while they are being drawn, with the few facts of their parts that the draws need."""

from __future__ import annotations

from dataclasses import dataclass

from autosync.specs.model import DType, Variable
from autosync.strategy.parts import Partition
from autosync.strategy.representation import Message
from autosync.strategy.space.choices import Setting


@dataclass(slots=True)
class DraftPiece:
    """A part's name and size (of its touched rows if it travels as rows), and its variable's ready and use order."""

    name: str
    num_bytes: float
    ready: int
    use: int


@dataclass(slots=True)
class StrategyDraft:
    """A message while it is being drawn."""

    pieces: list[DraftPiece]
    setting: Setting
    dtype: DType
    lane: int = 0
    priority: int = 0
    slice_bytes: int | None = None

    @property
    def num_bytes(self) -> float:
        """The bytes of all parts."""
        return sum([piece.num_bytes for piece in self.pieces])

    @property
    def use(self) -> int:
        """The earliest use among its parts."""
        return min([piece.use for piece in self.pieces])

    def message(self) -> Message:
        """Return the finished message."""
        return Message(
            parts=tuple([piece.name for piece in self.pieces]),
            synchroniser=self.setting.synchroniser,
            codec=self.setting.codec,
            priority=self.priority,
            lane=self.lane,
            slice_bytes=self.slice_bytes,
        )


def pieces_of(variable: Variable, partition: Partition | None, num_bytes: float) -> list[DraftPiece]:
    """Return the parts of a variable; `num_bytes` is the size of its gradient or touched rows, divided among them."""
    if partition is None:
        return [DraftPiece(variable.name, num_bytes, variable.ready, variable.use)]
    per_index = num_bytes / variable.shape[partition.axis]
    name, ready, use = variable.name, variable.ready, variable.use
    return [DraftPiece(f"{name}[{index}]", per_index * size, ready, use) for index, size in enumerate(partition.sizes)]
