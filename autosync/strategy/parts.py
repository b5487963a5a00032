"""Parts: where each piece of a partitioned variable lies, how large it is and what it is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from autosync.specs.model import ITEM_BYTES, ModelSpec, Variable
from autosync.strategy.representation import Partition, PartName, Strategy

INDEX_BYTES = 8
"""Of a row that travels alone: which one it is."""


@dataclass(frozen=True, slots=True)
class Part:
    """`begin` to `end` of a variable along `axis`; a variable that is not partitioned is one part."""

    name: PartName
    variable: Variable
    axis: int
    begin: int
    end: int

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.variable.shape
        return (*shape[: self.axis], self.end - self.begin, *shape[self.axis + 1 :]) if shape else ()

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.num_elements * ITEM_BYTES[self.variable.dtype]

    @property
    def order(self) -> tuple[int, int]:
        """Parts are laid out and counted in the order in which their gradients become ready."""
        return (self.variable.ready, self.name.index)

    def touched_rows(self) -> tuple[float, int]:
        """Rows of an embedding's part that one rank touches in a step: expected (its share), and at most."""
        variable = self.variable
        assert variable.touched_rows is not None, "embeddings only"
        assert variable.max_touched_rows is not None, "embeddings only"
        if self.axis != 0:
            return variable.touched_rows, variable.max_touched_rows
        rows = self.end - self.begin
        return variable.touched_rows * rows / variable.shape[0], min(rows, variable.max_touched_rows)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of an embedding's part with its index."""
        return INDEX_BYTES + self.shape[1] * ITEM_BYTES[self.variable.dtype]

    @property
    def smaller_side(self) -> int:
        """The smaller side of the matrix that PowerSGD makes of a part: its first axis against all others."""
        shape = self.shape
        rows = shape[0] if shape else 1
        return min(rows, math.prod(shape) // rows)

    @property
    def factor_bytes(self) -> int:
        """Bytes of the two factors of one rank's gradient of a linear variable's part."""
        assert self.variable.factor_rows is not None, "linear variables only"
        return self.variable.factor_rows * sum(self.shape) * ITEM_BYTES[self.variable.dtype]


def parts_of(variable: Variable, partition: Partition | None) -> tuple[Part, ...]:
    """The parts of one variable."""
    if partition is None:
        rows = variable.shape[0] if variable.shape else 1
        return (Part(PartName(variable.name), variable, 0, 0, rows),)
    parts: list[Part] = []
    begin = 0
    for index, size in enumerate(partition.sizes):
        parts.append(Part(PartName(variable.name, index, whole=False), variable, partition.axis, begin, begin + size))
        begin += size
    return tuple(parts)


def all_parts(strategy: Strategy, model: ModelSpec) -> Mapping[str, Part]:
    """Every part of every variable under a strategy, by its name."""
    found: dict[str, Part] = {}
    for variable in model.variables:
        for part in parts_of(variable, strategy.partitions.get(variable.name)):
            found[str(part.name)] = part
    return found
