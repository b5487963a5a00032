"""Formats words and tables that show strategies to people."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from autosync.documents import to_plain

WIDTH = 100
"""No line of a verdict is longer, except names and commands that are longer themselves."""
_INDENT = 4
"""The columns by which what goes on of an indented line is indented."""
_NUMBERED = re.compile(r"(?P<stem>.*?)(?P<number>0|[1-9][0-9]*)")


def count(number: int, what: str) -> str:
    """Return a number with its noun: `1 message`, `3 messages`, `2 classes`."""
    if number == 1:
        return f"1 {what}"
    return f"{number} {what}es" if what.endswith(("s", "ch")) else f"{number} {what}s"


def abbreviated(names: Sequence[str], *, most: int = 3) -> str:
    """Return a list such as `a, b, c and 4 more`; one name above `most` is still listed."""
    if len(names) <= most + 1:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def runs(names: Sequence[str]) -> str:
    """Return a list of names in which names with consecutive numbers are joined: `node-0..2, big`."""
    found: list[tuple[str, int | None, int | None]] = []
    for name in names:
        match = _NUMBERED.fullmatch(name)
        stem, number = (match["stem"], int(match["number"])) if match else (name, None)
        if found and number is not None and found[-1][0] == stem and found[-1][2] == number - 1:
            found[-1] = (stem, found[-1][1], number)
        else:
            found.append((stem, number, number))
    return ", ".join(_run(stem, first, last) for stem, first, last in found)


def _run(stem: str, first: int | None, last: int | None) -> str:
    if first is None:
        return stem
    return f"{stem}{first}" if first == last else f"{stem}{first}..{last}"


def natural(name: str) -> list[Any]:
    """Return a sort key that puts node-10 after node-9."""
    stem = name.rstrip("0123456789")
    return [stem, int(name[len(stem) :] or -1)]


def spread(numbers: Sequence[int]) -> str:
    """Return the range of numbers: `4`, or `2 to 7`."""
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def settings(value: Any) -> str:
    """Return a synchroniser or codec in one phrase, its kind and non-default fields: `all_reduce topology=ring`."""
    plain = to_plain(value)
    return " ".join([plain.pop("kind"), *_assignments(plain)])


def _assignments(plain: dict[str, Any]) -> list[str]:
    words: list[str] = []
    for key, item in plain.items():
        if isinstance(item, dict):
            words.append(f"{key}({' '.join(_assignments(item))})")
        elif isinstance(item, bool):
            words.append(key if item else f"{key}=false")
        elif isinstance(item, list):
            words.append(f"{key}={len(item)}")
        else:
            words.append(f"{key}={item}")
    return words


def wrapped(lines: Iterable[str]) -> list[str]:
    """Return lines of prose, broken at spaces. What goes on of an indented line is indented further."""
    return [part for line in lines for part in _broken(line, " " * _INDENT if line.startswith(" ") else "")]


def _broken(line: str, indent: str) -> list[str]:
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]


def format_wrapped_table(rows: Sequence[Sequence[str]], *, header: Sequence[str], right: Sequence[str] = ()) -> str:
    """Format rows as a table whose last column has prose: it is broken, and goes on below where it began."""
    table = format_table([row[:-1] for row in rows], header=header[:-1], right=right).split("\n")
    width = max(map(len, table)) + 2
    ends = (header[-1], *(row[-1] for row in rows))
    lines = [f"{line.ljust(width)}{end}" for line, end in zip(table, ends, strict=True)]
    return "\n".join(part for line in lines for part in _broken(line, " " * width))


def format_table(rows: Sequence[Sequence[str]], *, header: Sequence[str], right: Sequence[str] = ()) -> str:
    """Format rows as plain text columns under a header, without empty columns; those in `right` are flush right."""
    columns = [(name, [row[index] for row in rows]) for index, name in enumerate(header)]
    lines = [""] * (len(rows) + 1)
    for name, cells in columns:
        if not any(cells):
            continue
        width = max(map(len, (name, *cells)))
        for index, cell in enumerate((name, *cells)):
            lines[index] += (cell.rjust(width) if name in right else cell.ljust(width)) + "  "
    return "\n".join(line.rstrip() for line in lines)
