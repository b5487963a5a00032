"""Computes, in compiled code, the size of slices in each measure; `measures` does the same for one piece."""

from __future__ import annotations

import numpy as np

from autosync.plan.compiled.data import (
    AXIS,
    BEGIN,
    CODEC,
    COLUMNS,
    END,
    FACTOR_ROWS,
    FIRST_PIECE,
    FIRST_SLICE,
    INT8,
    ITEM_BYTES,
    MAX_TOUCHED_ROWS,
    MEASURES,
    NEEDS,
    NEEDS_BYTES,
    NEEDS_MATRIX,
    NEEDS_ROWS,
    ONE,
    PART,
    PART_ELEMENTS,
    PIECE_ELEMENTS,
    ROWS,
    SLICE_ELEMENTS,
    TEMPLATE,
    TOP_K,
    VARIABLE,
    Floats,
    Integers,
    Slices,
    Templates,
    Variables,
)
from autosync.plan.compiled.jit import called, inner
from autosync.strategy.parts import INDEX_BYTES

_ELEMENTS, _ENCODED = MEASURES.index("elements"), MEASURES.index("encoded_bytes")
_LEFT, _RIGHT = MEASURES.index("left_elements"), MEASURES.index("right_elements")
_FACTORS, _REBUILT = MEASURES.index("factor_elements"), MEASURES.index("rebuilt_elements")
_TOUCHED, _UNION = MEASURES.index("touched_elements"), MEASURES.index("union_elements")
_TOUCHED_BYTES, _MOST_TOUCHED_BYTES = MEASURES.index("touched_bytes"), MEASURES.index("most_touched_bytes")
_UNION_BYTES, _MOST_UNION_BYTES = MEASURES.index("union_bytes"), MEASURES.index("most_union_bytes")


def measure(slices: Slices, templates: Templates, variables: Variables, num_workers: int) -> None:
    """Write the amounts of slices in the measures that their templates need."""
    _measure(
        slices.messages,
        slices.slices,
        slices.pieces,
        slices.parts,
        templates.table,
        templates.codec_number,
        variables.table,
        variables.touched_rows,
        num_workers,
        slices.amounts,
    )


@called
def _measure(
    messages: Integers,
    slices: Integers,
    pieces: Integers,
    parts: Integers,
    templates: Integers,
    codec_number: Floats,
    variables: Integers,
    touched_rows: Floats,
    num_workers: int,
    amounts: Integers,
) -> None:
    for message in range(len(messages) - 1):
        template = messages[message, TEMPLATE]
        needs, codec = templates[template, NEEDS], templates[template, CODEC]
        for one in range(messages[message, FIRST_SLICE], messages[message + 1, FIRST_SLICE]):
            amounts[one, ONE] = 1
            amounts[one, _ELEMENTS] = slices[one, SLICE_ELEMENTS]
            if needs == 0:
                continue
            for piece in range(slices[one, FIRST_PIECE], slices[one + 1, FIRST_PIECE]):
                part = parts[pieces[piece, PART]]
                if needs & NEEDS_BYTES:
                    num_bytes = _encoded_bytes(codec, codec_number[template], pieces[piece, PIECE_ELEMENTS])
                    amounts[one, _ENCODED] += num_bytes
                if needs & NEEDS_MATRIX:
                    _add_matrix(part, variables[part[VARIABLE]], amounts[one])
                if needs & NEEDS_ROWS:
                    variable = part[VARIABLE]
                    _add_rows(part, variables[variable], touched_rows[variable], num_workers, amounts[one])


@inner
def _encoded_bytes(codec: int, number: float, num_elements: int) -> int:
    if codec == INT8:
        return num_elements + 4 * int(np.ceil(num_elements / number))
    if codec == TOP_K:
        return 8 * max(1, int(np.ceil(number * num_elements)))
    return int(np.ceil(num_elements / 8)) + 4


@inner
def _add_matrix(part: Integers, variable: Integers, amounts: Integers) -> None:
    rows = part[END] - part[BEGIN] if part[AXIS] == 0 else variable[ROWS]
    columns = part[PART_ELEMENTS] // rows
    amounts[_LEFT] += rows
    amounts[_RIGHT] += columns
    amounts[_FACTORS] += variable[FACTOR_ROWS] * (rows + columns)
    amounts[_REBUILT] += part[PART_ELEMENTS] * variable[FACTOR_ROWS]


@inner
def _add_rows(part: Integers, variable: Integers, touched: float, num_workers: int, amounts: Integers) -> None:
    length = part[END] - part[BEGIN]
    rows, columns, most = variable[ROWS], variable[COLUMNS], variable[MAX_TOUCHED_ROWS]
    if part[AXIS] == 0:
        touched, most, rows = touched * length / rows, min(length, most), length
    else:
        columns = length
    row_bytes = INDEX_BYTES + columns * variable[ITEM_BYTES]
    share = min(1.0, touched / rows)
    union = rows * (1.0 - (1.0 - share) ** float(num_workers))
    num_touched, num_union = _whole(touched), _whole(union)
    amounts[_TOUCHED] += num_touched * columns
    amounts[_TOUCHED_BYTES] += num_touched * row_bytes
    amounts[_MOST_TOUCHED_BYTES] += most * row_bytes
    amounts[_UNION] += num_union * columns
    amounts[_UNION_BYTES] += num_union * row_bytes
    amounts[_MOST_UNION_BYTES] += min(rows, most * num_workers) * row_bytes


@inner
def _whole(expected: float) -> int:
    """Round as `rows.whole_rows` does."""
    return max(1, int(np.rint(expected))) if expected > 0.0 else 0
