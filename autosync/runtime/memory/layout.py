"""The places of regions that are not as long as their part, and the lags of parameters. Pure, and free of torch.

Most regions are as long as their part of the variable, and lie where it does. The outputs of codecs are not: bytes, and
the two factors of a matrix. They follow one another in the plan's order, separately for each message.
"""

from __future__ import annotations

from autosync.plan.types import Local, Plan, Region, StagePass
from autosync.plan.wires import encoded_bytes
from autosync.strategy.codecs import Cast, Codec, PowerSGD
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer


class Layout:
    """The places of regions that are not as long as their parts, in buffers by kind, message and type."""

    def __init__(self, plan: Plan) -> None:
        self._bounds: dict[int, tuple[int, int]] = {}
        self._sizes: dict[tuple[str, int, str], int] = {}
        codecs: dict[int, tuple[int, Codec]] = {}
        for operation in plan.operations:
            if isinstance(operation, Local) and operation.kind in ("encode", "project"):
                codec = operation.settings
                assert codec is not None, "encoding has a codec"
                assert not isinstance(codec, OuterOptimizer | StagePass), "encoding has a codec"
                codecs.update(dict.fromkeys(operation.outputs, (operation.message, codec)))
        for index, (message, codec) in sorted(codecs.items()):
            if not isinstance(codec, Cast):
                self._place(index, plan.regions[index], message, codec)

    def _place(self, index: int, region: Region, message: int, codec: Codec) -> None:
        key = (region.kind, message, region.dtype)
        start = self._sizes.get(key, 0)
        # The region of a factor has its own size.
        size = region.num_elements if isinstance(codec, PowerSGD) else encoded_bytes(codec, region.num_elements)
        self._bounds[index] = (start, start + size)
        self._sizes[key] = start + size

    def has(self, region: int) -> bool:
        """Whether a region (by position) is not as long as its part."""
        return region in self._bounds

    def start(self, region: int) -> int:
        return self._bounds[region][0]

    def stop(self, region: int) -> int:
        return self._bounds[region][1]

    def size(self, kind: str, message: int, dtype: str) -> int:
        """Return the number of elements in a message's buffer, or 0 if its regions are as long as their parts."""
        return self._sizes.get((kind, message, dtype), 0)


def lags(plan: Plan) -> list[int]:
    """Return for each message how many iterations late its parameters may come."""
    found = [0] * len(plan.messages)
    for operation in plan.operations:
        if isinstance(operation, Local) and operation.kind in ("take", "write_rows"):
            late = max((edge.lag for edge in operation.after), default=0)
            found[operation.message] = max(found[operation.message], late)
    return found
