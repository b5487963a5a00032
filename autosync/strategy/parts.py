"""Parts of variables: how a variable is cut, and the place and size of each part."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

from autosync.documents import STRICT
from autosync.specs.model import ITEM_BYTES, Variable

INDEX_BYTES = 8
"""The bytes of the index that travels with a row."""


_PART = re.compile(r"(?P<variable>[^\[\]]+)(\[(?P<index>0|[1-9][0-9]*)\])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A variable cut along `axis` into parts of the given sizes."""

    __pydantic_config__ = STRICT

    axis: int = 0
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or any(size < 1 for size in self.sizes):
            raise ValueError(f"sizes {list(self.sizes)} have an empty part (each part has 1 or more)")
        if self.axis < 0:
            raise ValueError(f"axis {self.axis} counts from the end (0 or more)")


@dataclass(frozen=True, slots=True)
class PartName:
    """The name of a part of a variable, such as `fc.weight[2]`, or of the whole variable, `fc.weight`."""

    variable: str
    index: int = 0
    whole: bool = True

    def __str__(self) -> str:
        return self.variable if self.whole else f"{self.variable}[{self.index}]"

    @staticmethod
    @functools.lru_cache(maxsize=65536)
    def parse(text: str) -> PartName:
        """Parse `VARIABLE` or `VARIABLE[INDEX]`; results are cached, as searches parse the same few names often."""
        match = _PART.fullmatch(text) if len(text) <= 4096 else None
        if match is None:
            raise ValueError(f"{text!r} names no part (VARIABLE or VARIABLE[INDEX])")
        index = match["index"]
        return PartName(match["variable"], int(index) if index else 0, index is None)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a variable: its elements from `begin` to `end` along `axis`; an uncut variable is one part."""

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
        """A key that sorts parts by the order in which gradients become ready, then by their number."""
        return (self.variable.ready, self.name.index)

    def touched_rows(self) -> tuple[float, int]:
        """Return the rows of an embedding's part that a rank touches in a step: the expected and the largest number."""
        variable = self.variable
        assert variable.touched_rows is not None, "embeddings only"
        assert variable.max_touched_rows is not None, "embeddings only"
        if self.axis != 0:
            return variable.touched_rows, variable.max_touched_rows
        rows = self.end - self.begin
        return variable.touched_rows * rows / variable.shape[0], min(rows, variable.max_touched_rows)

    @property
    def row_bytes(self) -> int:
        """The bytes of one row of an embedding's part with its index."""
        return INDEX_BYTES + self.shape[1] * ITEM_BYTES[self.variable.dtype]

    @property
    def smaller_side(self) -> int:
        """The smaller side of the matrix that PowerSGD makes of a part: the first axis by the product of all others."""
        shape = self.shape
        rows = shape[0] if shape else 1
        return min(rows, math.prod(shape) // rows)

    @property
    def factor_bytes(self) -> int:
        """The bytes of the two factors of one rank's gradient, for a part of a linear variable."""
        assert self.variable.factor_rows is not None, "linear variables only"
        return self.variable.factor_rows * sum(self.shape) * ITEM_BYTES[self.variable.dtype]


def parts_of(variable: Variable, partition: Partition | None) -> tuple[Part, ...]:
    """Return the parts of one variable."""
    if partition is None:
        rows = variable.shape[0] if variable.shape else 1
        return (Part(PartName(variable.name), variable, 0, 0, rows),)
    parts: list[Part] = []
    begin = 0
    for index, size in enumerate(partition.sizes):
        parts.append(Part(PartName(variable.name, index, whole=False), variable, partition.axis, begin, begin + size))
        begin += size
    return tuple(parts)
