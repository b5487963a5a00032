"""How long the gradients of weights take that a split backward pass can leave for later."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autosync.documents import STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitLayers:
    """The layers of the forward segment number `segment` whose gradients of weights can come later.

    `seconds` are the times of these gradients in a microbatch, for each size in the timeline's `sizes`. They are within
    those of the backward pass.
    """

    __pydantic_config__ = STRICT

    segment: int
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not all(math.isfinite(one) and one >= 0 for one in self.seconds):
            raise ValueError(f"{list(self.seconds)} are no durations (0 or more seconds)")

    def scaled(self, factor: float) -> SplitLayers:
        """Return the layers with times that are `factor` times as long."""
        return replace(self, seconds=tuple(factor * one for one in self.seconds))


def check_splits(splits: Sequence[SplitLayers] | None, num_sizes: int, num_segments: int) -> None:
    """Raise ValueError unless these are segments in their order, each with a time for every batch size."""
    places = [one.segment for one in splits or ()]
    if places != sorted(set(places)) or (places and not 0 <= places[0] <= places[-1] < num_segments):
        raise ValueError(f"split layers in the segments {places} of {num_segments} (in order, each once)")
    for one in splits or ():
        if len(one.seconds) != num_sizes:
            raise ValueError(f"{len(one.seconds)} times of split layers (one for each of the {num_sizes} sizes)")
