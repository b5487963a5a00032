"""The accesses of a loop's function to rows of tables, and the possible origins of values inside the function."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from autosync.loops.affine import Affine

AccessKind = Literal["read", "write", "add"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """A row of a table that a record reads, writes or adds to; several rows if the form has several values."""

    table: str
    row: Affine
    kind: AccessKind
    line: int

    @property
    def changes(self) -> bool:
        return self.kind != "read"


@dataclass(frozen=True, slots=True)
class RowView:
    """A part of a table's row that a name in the function may refer to. It still has `num_axes` axes to subscript."""

    table: str
    row: Affine
    num_axes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyValue:
    """The possible origins of a value: parts of rows, an affine function of the record's fields, a record's vector.

    `form`, `vector` and `is_numeric` are set only if they are certain. `part_of` holds the vectors that a change of the
    value could change. `is_cut` says that the value does not begin with the vector's first element. `is_numeric` says
    that it is a number or an array of numbers, and no tuple: as a subscript, it takes an axis.
    """

    views: frozenset[RowView] = frozenset()
    form: Affine | None = None
    vector: str | None = None
    is_cut: bool = False
    part_of: frozenset[str] = frozenset()
    is_numeric: bool = False

    def joined(self, other: BodyValue) -> BodyValue:
        """Return the value that may be this one or the other."""
        return BodyValue(
            views=self.views | other.views,
            form=self.form if self.form == other.form else None,
            vector=self.vector if self.vector == other.vector else None,
            is_cut=self.is_cut or other.is_cut,
            part_of=self.part_of | other.part_of,
            is_numeric=self.is_numeric and other.is_numeric,
        )

    def within(self, num_axes: int = 1) -> frozenset[RowView]:
        """Return the parts of rows that remain after `num_axes` subscripts. Single numbers are no longer parts."""
        return frozenset(
            RowView(view.table, view.row, view.num_axes - num_axes) for view in self.views if view.num_axes > num_axes
        )


def number_of(form: Affine | None = None) -> BodyValue:
    """Return the value of a number, with its form if that is known."""
    return BodyValue(form=form, is_numeric=True)


PLAIN = BodyValue()
"""A new value: a number, an array that the function has made, or a tuple."""

NUMERIC = number_of()
"""A new number or array."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyFacts:
    """The facts in a function's source: its accesses, and the fields of the record that it assigns."""

    accesses: tuple[Access, ...] = ()
    written_fields: frozenset[str] = field(default=frozenset())
    has_inner_subscripts: bool = False
