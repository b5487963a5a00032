"""What a dataset says of itself. A wrapper that passes unknown names on to what it wraps does not speak for it."""

from __future__ import annotations

import inspect
from typing import Any

from autosync.errors import InputError, Problem
from autosync.specs.input_settings import InputSettings


def own(dataset: object, name: str) -> Any:
    """Return an attribute of the dataset itself or of its class; None if there is none."""
    return None if inspect.getattr_static(dataset, name, None) is None else getattr(dataset, name)


def shard_sizes_of(dataset: Any) -> tuple[int, ...]:
    """Return the number of examples in each shard; a dataset without shards is one."""
    sizes = tuple(own(dataset, "shard_sizes") or (len(dataset),))
    if sum(sizes) != len(dataset):
        what = f"its length is {len(dataset)}, and its shard_sizes add up to {sum(sizes)}"
        rule = "a class with a length of its own has shard_sizes of its own"
        raise InputError([Problem(what=what, rule=rule, path=("dataset",))])
    return sizes


def under_settings(dataset: Any, settings: InputSettings) -> Any:
    """Return the dataset as it reads under these settings, if it reads through autosync."""
    changed = own(dataset, "with_settings")
    return changed(settings) if callable(changed) else dataset


def gives_batches(kind: type) -> bool:
    """Whether datasets of a class give whole batches by `__getitems__`.

    A class that inherits `__getitems__` and has another `__getitem__` does not: its examples are not those.
    """
    for one in kind.__mro__:
        if "__getitems__" in vars(one):
            return True
        if "__getitem__" in vars(one):
            return False
    return False
