"""The line and the spelling of each value of a document, in a tree that mirrors the document.

A table with the full path of every value would take more memory than the values. Here a path is built only to report
a problem.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from autosync.errors import Path


class LineTree:
    """A mapping or list in the tree: its line, and the entries of its values by key or position."""

    __slots__ = ("inside", "line")

    def __init__(self, line: int, inside: dict[str, LineEntry] | list[LineEntry]) -> None:
        self.line = line
        self.inside = inside


LineEntry: TypeAlias = int | tuple[int, str] | LineTree
"""An entry of the tree: a value's line, with its spelling if JSON would spell it differently; or a subtree."""


def line_at(place: LineEntry) -> int:
    """Return the line of an entry."""
    if isinstance(place, LineTree):
        return place.line
    return place if isinstance(place, int) else place[0]


def _inside(place: LineEntry, step: str | int) -> LineEntry:
    """Return the entry of the value at this key or position; raise KeyError if it does not exist."""
    try:
        if isinstance(place, LineTree):
            inside: Any = place.inside
            return inside[step]  # type: ignore[no-any-return]
    except (IndexError, TypeError) as error:
        raise KeyError(step) from error
    raise KeyError(step)


class _LineTable:
    """The common part of `ValueLines` and `ValueSpellings`."""

    def __init__(self, root: LineEntry) -> None:
        self.root = root

    def at(self, path: Path) -> LineEntry:
        """Return the entry of the value at this path; raise KeyError if it does not exist."""
        place = self.root
        for step in path:
            place = _inside(place, step)
        return place

    def walk(self) -> Iterator[tuple[Path, LineEntry]]:
        """Yield all entries with their paths, outer entries before inner ones."""
        waiting: list[tuple[Path, LineEntry]] = [((), self.root)]
        while waiting:
            path, place = waiting.pop()
            yield path, place
            if isinstance(place, LineTree):
                steps: Any = place.inside.items() if isinstance(place.inside, dict) else enumerate(place.inside)
                waiting.extend(((*path, step), inner) for step, inner in steps)


class ValueLines(_LineTable, Mapping[Path, int]):
    """A mapping from the path of each value to its line."""

    def __getitem__(self, path: Path) -> int:
        return line_at(self.at(path))

    def __iter__(self) -> Iterator[Path]:
        return (path for path, _ in self.walk())

    def __len__(self) -> int:
        return sum(1 for _ in self.walk())


class ValueSpellings(_LineTable, Mapping[Path, str]):
    """A mapping from path to spelling, for the values that JSON would spell differently."""

    def __getitem__(self, path: Path) -> str:
        place = self.at(path)
        if not isinstance(place, tuple):
            raise KeyError(path)
        return place[1]

    def __iter__(self) -> Iterator[Path]:
        return (path for path, place in self.walk() if isinstance(place, tuple))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def below(table: Mapping[Path, Any], key: str) -> Mapping[Path, Any]:
    """Return the part of a table below a key, with paths that start there."""
    if isinstance(table, ValueLines | ValueSpellings):
        try:
            return type(table)(_inside(table.root, key))
        except KeyError:
            return {}
    return {path[1:]: value for path, value in table.items() if path[:1] == (key,)}
