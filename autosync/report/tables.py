"""Tables of the page: each has a caption, headings with a scope, and buttons that sort it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autosync.report.markup import Content, Markup, element

MAX_ROWS = 1000
"""The most rows of a table that a page shows. The caption tells the number of rows left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCell:
    """The text of a cell, and the number by which it is sorted. Without a number it is sorted as text."""

    shown: Content
    number: float | None = None


Row = Sequence[TableCell | str]


def figure(value: float | None, shown: str) -> TableCell:
    """Return a cell with a number. If the number is unknown, the cell is empty and is sorted last."""
    return TableCell(shown="") if value is None else TableCell(shown=shown, number=value)


def table(caption: str, columns: Sequence[str], rows: Sequence[Row], *, numbers: Sequence[str] = ()) -> Markup:
    """Return a table whose first column names its rows. Empty columns are left out.

    The columns in `numbers` are aligned right.
    """
    places = [
        place for place in range(len(columns)) if place == 0 or any(map(_is_filled, (row[place] for row in rows)))
    ]
    columns, rows = [columns[place] for place in places], [[row[place] for place in places] for row in rows]
    left = len(rows) - MAX_ROWS
    if left > 0:
        caption = f"{caption} The first {MAX_ROWS} rows; {left} more are left out."
    head = [
        element("th", element("button", name, type="button"), scope="col", class_=_kind(name in numbers))
        for name in columns
    ]
    body = [
        element("tr", [_cell(cell, columns[place], numbers, is_name=place == 0) for place, cell in enumerate(row)])
        for row in rows[:MAX_ROWS]
    ]
    inside = [element("caption", caption), element("thead", element("tr", head)), element("tbody", body)]
    # A wide table scrolls within its own section, also by keyboard.
    return element("section", element("table", inside), class_="wide", tabindex=0, aria_label=caption)


def _is_filled(cell: TableCell | str) -> bool:
    return bool(cell if isinstance(cell, str) else cell.shown)


def _kind(is_number: bool) -> str | None:  # noqa: FBT001 - one meaning, two places
    return "number" if is_number else None


def _cell(cell: TableCell | str, column: str, numbers: Sequence[str], *, is_name: bool) -> Markup:
    shown, number = (cell, None) if isinstance(cell, str) else (cell.shown, cell.number)
    key = None if number is None else f"{number:.9g}"
    kind = _kind(column in numbers)
    if is_name:
        return element("th", shown, scope="row", class_=kind, data_key=key)
    return element("td", shown, class_=kind, data_key=key)
