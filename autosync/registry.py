"""Registries: variants by name, such as presets, launchers, simulators and proposers.

A registry is a table from names to `module:attribute`. A variant is imported when it is used, so listing names is cheap
and the dependencies of a variant load only when it is used. Other packages add entries through the entry-point group
`autosync.<what>s`. An entry that would replace a built-in variant is an error.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import metadata
from typing import Any

from autosync.errors import OperationError, UnknownNameError


class Registry:
    """The variants of one kind (`what` is its singular: "preset", "launcher")."""

    def __init__(self, what: str, builtin: Mapping[str, str]) -> None:
        self.what = what
        self._builtin = dict(builtin)
        self._given: dict[str, Callable[..., Any]] = {}

    def names(self) -> tuple[str, ...]:
        """Return the names that files and commands may use, sorted."""
        return tuple(sorted(self._table))

    def __contains__(self, name: str) -> bool:
        """Whether `get` finds a variant by this name: a name from `names` or from `name_of`."""
        return name in self._table or name in self._given

    def name_of(self, variant: object) -> str:
        """Return the name of a variant. An object gets a name, by which `get` finds it from now on in this process.

        A builder is found as it is. For any other object, `get` finds a builder that returns this object.
        """
        if isinstance(variant, str):
            return variant
        is_builder = callable(variant)
        named: Any = variant if is_builder and hasattr(variant, "__qualname__") else type(variant)
        name = f"{named.__module__}.{named.__qualname__}"
        builder: Any = variant
        self._given[name] = builder if is_builder else lambda *_, **__: builder
        return name

    def variants(self) -> Mapping[str, Any]:
        """Import all variants and return them by name: the built-in ones in their table's order, then the others."""
        added = sorted(set(self._table).difference(self._builtin))
        return {name: self.get(name) for name in (*self._builtin, *added)}

    def check(self, name: str) -> None:
        """Raise UnknownNameError, with the known names, for a name that `get` does not find. Imports nothing."""
        if name not in self:
            raise UnknownNameError(self.what, name, self.names())

    def get(self, name: str) -> Any:
        """Import and return the variant called `name`; the error for an unknown name lists the known names."""
        self.check(name)
        if name in self._given:
            return self._given[name]
        module, _, attribute = self._table[name].partition(":")
        return getattr(importlib.import_module(module), attribute)

    @cached_property
    def _table(self) -> dict[str, str]:
        # Read only once: reading takes milliseconds, and presets are looked up thousands of times.
        table = dict(self._builtin)
        for entry in metadata.entry_points(group=f"autosync.{self.what}s"):
            if entry.name in table and table[entry.name] != entry.value:
                taken = f"the {self.what} name {entry.name!r} is taken by {table[entry.name]}"
                raise OperationError(f"{taken}; {entry.value} cannot have it too")
            table[entry.name] = entry.value
        return table
