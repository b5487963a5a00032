"""Reads the records before a loop runs: finds the range of each row's form, and forms that leave their table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from autosync.errors import InputError, Problem
from autosync.loops.accesses import Access
from autosync.loops.affine import Affine
from autosync.loops.declarations import Records, SerialLoop

Bounds = Mapping[Affine, tuple[int, int]]
"""The least and the greatest value of each form over all records."""

_MAX_VALUE = 2**31


def bounds_of(loop: SerialLoop, accesses: Iterable[Access], records: Records) -> Bounds:
    """Return the range of each form. Raise InputError if a row is outside its table or a subscript could overflow."""
    found: dict[Affine, tuple[int, int]] = {}
    problems: dict[Problem, None] = {}
    for access in accesses:
        if access.row not in found:
            overflows = list(_overflows(loop, access, records))
            problems.update(dict.fromkeys(overflows))
            # The values of a form that overflows cannot be computed.
            found[access.row] = (0, 0) if overflows else _range_of(access.row, records)
        low, high = found[access.row]
        num_rows = loop.tables[access.table].shape[0]
        if len(records) and (low < 0 or high >= num_rows):
            what = f"the row {access.row} of {access.table} reaches from {low} to {high}"
            rule = f"{access.table} has rows 0 to {num_rows - 1}"
            problems[Problem(what=what, rule=rule, file=loop.file, line=access.line)] = None
    if problems:
        raise InputError(problems)
    return found


def _range_of(form: Affine, records: Records) -> tuple[int, int]:
    values = form.values(records)
    # No records, or a field that is a vector without elements: no row is reached.
    if not values.size:
        return 0, 0
    return int(values.min()), int(values.max())


def _overflows(loop: SerialLoop, access: Access, records: Records) -> Iterator[Problem]:
    """Yield a problem for each subscript for which numpy and Python could compute different results."""
    form = access.row
    has_arithmetic = form.constant != 0 or len(form.terms) > 1 or any(factor != 1 for _, factor in form.terms)
    if not has_arithmetic:
        return
    reach = abs(form.constant)
    for name, factor in form.terms:
        column = records[name.partition("[")[0]]
        if column.dtype.kind == "u" or column.dtype.itemsize < np.dtype("int32").itemsize:
            what = f"{name} is {column.dtype.base} and takes part in the arithmetic of a row"
            rule = "int32 or int64 fields: others wrap around"
            yield Problem(what=what, rule=rule, file=loop.file, line=access.line)
        # A factor counts even if there are no records, because it must fit an integer too.
        reach += abs(factor) * int(np.abs(column.astype(np.int64)).max(initial=1))
    if reach >= _MAX_VALUE:
        what = f"the parts of {form} reach {reach}"
        yield Problem(what=what, rule="below 2^31, so that no subscript overflows", file=loop.file, line=access.line)
