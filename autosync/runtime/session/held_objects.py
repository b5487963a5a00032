"""Finds out which objects a script holds besides us."""

from __future__ import annotations

import sys
from collections.abc import Mapping


class HeldObjects:
    """Counts the references to some objects, which nothing but their mapping refers to when this is made."""

    def __init__(self, objects: Mapping[str, object]) -> None:
        self._objects = objects
        self._usual = max(self._counts().values(), default=0)

    def names(self) -> list[str]:
        """Return the names of the objects to which something else refers now."""
        return [name for name, count in self._counts().items() if count > self._usual]

    def _counts(self) -> dict[str, int]:
        return {name: sys.getrefcount(one) for name, one in self._objects.items()}
