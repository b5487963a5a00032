"""The buffers of all ranks. Dense buffers are found by part, and contents of the wire by region."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from autosync.errors import OperationError
from autosync.plan.reference.workload import Array
from autosync.plan.types import Plan, Region
from autosync.specs.model import ITEM_BYTES

LASTING = ("param", "master", "anchor")
CONTENT = ("rows", "new_rows", "factors")
CROSSING = ("activations", "activation_grads")

Key: TypeAlias = tuple[str, int, int, int]


class TooEarlyError(OperationError):
    """Raised when a plan lets a rank read a content that has not arrived yet. (Missing numbers read as NaN instead.)"""


class Store:
    """Every rank's buffers. Elements never written read as NaN (but zero in the norm and in buffers of servers)."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._dense: dict[Key, Array] = {}
        self._content: dict[tuple[int, int, int], Any] = {}
        self._sizes = [part.num_elements for part in plan.parts]
        # By kind and boundary between stages, the bytes of all microbatches.
        self._crossing: dict[tuple[str, int], int] = {}
        for region in plan.regions:
            if region.kind in CROSSING:
                key = (region.kind, region.part)
                self._crossing[key] = max(region.stop, self._crossing.get(key, 0))

    def dense(self, region: Region, rank: int, step: int) -> Array:
        """Return a view of the rank's elements of a region, to read and to write."""
        key = (region.kind, region.part, rank, -1 if region.kind in LASTING else step)
        array = self._dense.get(key)
        if array is None:
            array = self._dense[key] = self._fresh(region, rank)
        return array[region.start : region.stop]

    def _fresh(self, region: Region, rank: int) -> Array:
        if region.kind == "norm":
            return np.zeros(2)
        if region.kind in CROSSING:
            return np.full(self._crossing[region.kind, region.part], np.nan)
        size = region.stop if region.kind in ("left", "right") else self._sizes[region.part]
        contributes = self._plan.ranks[rank].role == "worker"
        return np.full(size, np.nan if contributes else 0.0)

    def content(self, region: int, rank: int, step: int) -> Any:
        """Return the rank's content of a region that is no array; raise TooEarlyError if it has not been written."""
        found = self._content.get((region, rank, step))
        if found is None or isinstance(found, list):
            raise TooEarlyError(f"rank {rank} reads {self._plan.regions[region]} of step {step} before it is there")
        return found

    def contents(self, region: int, rank: int, step: int) -> list[Any]:
        """Return the contents that a gather brought to the rank, in the order of the group's members."""
        found = self._content.get((region, rank, step))
        if not isinstance(found, list):
            raise TooEarlyError(f"rank {rank} reads all of {self._plan.regions[region]} of step {step} too early")
        return found

    def put_content(self, region: int, rank: int, step: int, value: Any) -> None:
        self._content[region, rank, step] = value

    def joined(self, regions: Sequence[int], rank: int, step: int) -> Array:
        """Return a copy of the rank's elements of several regions, one behind the other."""
        return np.concatenate([self.dense(self._plan.regions[index], rank, step) for index in regions])

    def spread(self, regions: Sequence[int], rank: int, step: int, values: Array) -> None:
        """Write joined elements back to their regions."""
        position = 0
        for index in regions:
            target = self.dense(self._plan.regions[index], rank, step)
            target[...] = values[position : position + len(target)]
            position += len(target)


def content_bytes(plan: Plan, region: Region, content: Any) -> int:
    """Return the bytes that one contribution takes on the wire."""
    part = plan.parts[region.part]
    if region.kind in ("rows", "new_rows"):
        return len(content[0]) * part.row_bytes
    assert region.kind == "factors", "encoded contents have a fixed size"
    return int(sum(matrix.size for matrix in content)) * ITEM_BYTES[part.variable.dtype]
