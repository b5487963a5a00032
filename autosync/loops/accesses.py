"""What a loop's function does to tables: accesses to rows, and what a value inside the function may be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from autosync.loops.affine import Affine

AccessKind = Literal["read", "write", "add"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One row (or rows, where the form has several values) of a table that a record reads, writes or adds to."""

    table: str
    row: Affine
    kind: AccessKind
    line: int

    @property
    def changes(self) -> bool:
        return self.kind != "read"


@dataclass(frozen=True, slots=True)
class RowView:
    """A part of a table's row that a name in the function may stand for; `num_axes` are left to subscript."""

    table: str
    row: Affine
    num_axes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyValue:
    """What a value may be: parts of rows, an affine function of the record's fields, a vector of the record.

    `form` and `vector` are certain, or None; `part_of` are the vectors that a change of the value could change.
    `is_cut` says that the first element of the value is not the vector's.
    """

    views: frozenset[RowView] = frozenset()
    form: Affine | None = None
    vector: str | None = None
    is_cut: bool = False
    part_of: frozenset[str] = frozenset()

    def joined(self, other: BodyValue) -> BodyValue:
        """What a value may be that is one or the other."""
        return BodyValue(
            views=self.views | other.views,
            form=self.form if self.form == other.form else None,
            vector=self.vector if self.vector == other.vector else None,
            is_cut=self.is_cut or other.is_cut,
            part_of=self.part_of | other.part_of,
        )

    def within(self, num_axes: int = 1) -> frozenset[RowView]:
        """The parts that are left after so many subscripts; numbers are no parts any more."""
        return frozenset(
            RowView(view.table, view.row, view.num_axes - num_axes) for view in self.views if view.num_axes > num_axes
        )


PLAIN = BodyValue()
"""A new value: a number, or an array of the function's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyFacts:
    """All that the source tells of a function: its accesses, and the fields of the record that it assigns."""

    accesses: tuple[Access, ...] = ()
    written_fields: frozenset[str] = field(default=frozenset())
    has_inner_subscripts: bool = False
