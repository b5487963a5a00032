"""Computes the size of a piece of a part in each of the measures that templates use."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autosync.plan.rows import union_rows, whole_rows
from autosync.plan.steps import Measure
from autosync.plan.wires import encoded_bytes
from autosync.specs.model import ITEM_BYTES
from autosync.strategy.codecs import Codec
from autosync.strategy.parts import Part


def measured(measure: Measure, part: Part, num_elements: int, codec: Codec | None, num_workers: int) -> int:
    """Return the size of a piece of `num_elements` in a measure.

    Only `elements` and `encoded_bytes` measure the piece; all other measures are those of the whole part.
    """
    if measure == "elements":
        return num_elements
    if measure == "encoded_bytes":
        assert codec is not None, "what is encoded has a codec"
        return encoded_bytes(codec, num_elements)
    return _OF_PARTS[measure](part, num_workers)


def _touched(part: Part) -> tuple[int, int]:
    """Return the rows that one rank touches: the expected and the largest number."""
    touched, most = part.touched_rows()
    return whole_rows(touched), most


def _union(part: Part, num_workers: int) -> tuple[int, int]:
    """Return the rows that the workers touch together: the expected and the largest number."""
    touched, most = part.touched_rows()
    num_rows = part.shape[0]
    return whole_rows(union_rows(num_rows, touched, num_workers)), min(num_rows, most * num_workers)


_OF_PARTS: Mapping[Measure, Callable[[Part, int], int]] = {
    "left_elements": lambda part, _: part.shape[0],
    "right_elements": lambda part, _: part.num_elements // part.shape[0],
    "factor_elements": lambda part, _: part.factor_bytes // ITEM_BYTES[part.variable.dtype],
    "rebuilt_elements": lambda part, _: part.num_elements * (part.variable.factor_rows or 0),
    "touched_elements": lambda part, _: _touched(part)[0] * part.shape[1],
    "touched_bytes": lambda part, _: _touched(part)[0] * part.row_bytes,
    "most_touched_bytes": lambda part, _: _touched(part)[1] * part.row_bytes,
    "union_elements": lambda part, num_workers: _union(part, num_workers)[0] * part.shape[1],
    "union_bytes": lambda part, num_workers: _union(part, num_workers)[0] * part.row_bytes,
    "most_union_bytes": lambda part, num_workers: _union(part, num_workers)[1] * part.row_bytes,
}
