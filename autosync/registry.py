"""Names for variants: presets, launchers, simulators, proposers.

A registry is a plain table from a name to `module:attribute`, imported when the name is asked for, so that listing
costs nothing and a variant's dependencies load only when it is used. Other packages add entries through the entry-point
group `autosync.<what>s`; an entry that would replace a built-in one is an error, never a silent override.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cached_property
from importlib import metadata
from typing import Any

from autosync.errors import OperationError, UnknownNameError


class Registry:
    """The variants of one kind (`what` is its singular: "preset", "launcher")."""

    def __init__(self, what: str, builtin: Mapping[str, str]) -> None:
        self.what = what
        self._builtin = dict(builtin)

    def names(self) -> tuple[str, ...]:
        """All known names, sorted."""
        return tuple(sorted(self._table))

    def get(self, name: str) -> Any:
        """The variant called `name`, imported now; an unknown name lists the known ones."""
        if name not in self._table:
            raise UnknownNameError(self.what, name, self._table)
        module, _, attribute = self._table[name].partition(":")
        return getattr(importlib.import_module(module), attribute)

    @cached_property
    def _table(self) -> dict[str, str]:
        # Read once: it takes milliseconds, and presets are asked for thousands of times.
        table = dict(self._builtin)
        for entry in metadata.entry_points(group=f"autosync.{self.what}s"):
            if entry.name in table and table[entry.name] != entry.value:
                taken = f"the {self.what} name {entry.name!r} is taken by {table[entry.name]}"
                raise OperationError(f"{taken}; {entry.value} cannot have it too")
            table[entry.name] = entry.value
        return table
