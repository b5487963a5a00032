"""The line and the spelling of each value of a document, as a tree of the form of the document.

A table with the full path of every value would take more memory than the values. Here a path is built only to report
a problem.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from autosync.errors import Path


class LineTree:
    """The line of a mapping or list, and the entries of its values by key or position."""

    __slots__ = ("inside", "line")

    def __init__(self, line: int, inside: dict[str, LineEntry] | list[LineEntry]) -> None:
        self.line = line
        self.inside = inside


LineEntry: TypeAlias = int | tuple[int, str] | LineTree
"""The line of a value; line and spelling where JSON would spell the value otherwise."""


def line_at(place: LineEntry) -> int:
    """The line of an entry."""
    if isinstance(place, LineTree):
        return place.line
    return place if isinstance(place, int) else place[0]


def _inside(place: LineEntry, step: str | int) -> LineEntry:
    """The entry of an inner value; KeyError where there is none."""
    try:
        if isinstance(place, LineTree):
            inside: Any = place.inside
            return inside[step]  # type: ignore[no-any-return]
    except (IndexError, TypeError) as error:
        raise KeyError(step) from error
    raise KeyError(step)


class _LineTable:
    """The common part of the two tables."""

    def __init__(self, root: LineEntry) -> None:
        self.root = root

    def at(self, path: Path) -> LineEntry:
        """The entry of a value; KeyError where there is none."""
        place = self.root
        for step in path:
            place = _inside(place, step)
        return place

    def walk(self) -> Iterator[tuple[Path, LineEntry]]:
        """All entries, outer ones first."""
        waiting: list[tuple[Path, LineEntry]] = [((), self.root)]
        while waiting:
            path, place = waiting.pop()
            yield path, place
            if isinstance(place, LineTree):
                steps: Any = place.inside.items() if isinstance(place.inside, dict) else enumerate(place.inside)
                waiting.extend(((*path, step), inner) for step, inner in steps)


class ValueLines(_LineTable, Mapping[Path, int]):
    """The line of each value by its path."""

    def __getitem__(self, path: Path) -> int:
        return line_at(self.at(path))

    def __iter__(self) -> Iterator[Path]:
        return (path for path, _ in self.walk())

    def __len__(self) -> int:
        return sum(1 for _ in self.walk())


class ValueSpellings(_LineTable, Mapping[Path, str]):
    """The spelling of each value that JSON would spell otherwise, by its path."""

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
    """The part of a table below a key, by the paths from there."""
    if isinstance(table, ValueLines | ValueSpellings):
        try:
            return type(table)(_inside(table.root, key))
        except KeyError:
            return {}
    return {path[1:]: value for path, value in table.items() if path[:1] == (key,)}
