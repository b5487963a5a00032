"""The state that a dataset keeps in its own memory, as far as it can be compared before and after an example."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

_PLAIN = (bool, int, float, complex, str, bytes)


def attributes(dataset: object) -> dict[str, Any]:
    """Return the attributes of a dataset, with those of the datasets that it wraps."""
    found: dict[str, Any] = {}
    prefix, seen = "", set[int]()
    while dataset is not None and id(dataset) not in seen:
        seen.add(id(dataset))
        held = getattr(dataset, "__dict__", {})
        found |= {f"{prefix}{name}": value for name, value in held.items()}
        prefix, dataset = f"{prefix}dataset.", held.get("dataset")
    return found


def own_state(dataset: object) -> dict[str, Any]:
    """Return what can be compared of a dataset's attributes: plain values, sizes of containers, versions of tensors."""
    return {name: _comparable(value) for name, value in attributes(dataset).items()}


def changed_state(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """Return the name of an attribute that has changed; None if there is none.

    A value that replaces None does not count: datasets open their files with their first example.
    """
    return next((name for name, now in after.items() if before.get(name) not in (None, now)), None)


def _comparable(value: object) -> Any:
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, torch.Tensor):
        # torch counts changes in place, but not under inference mode.
        return id(value), None if value.is_inference() else value._version  # noqa: SLF001
    if isinstance(value, list | tuple | dict | set | deque):
        return type(value).__name__, len(value)
    # Other objects, such as open files, change in ways that say nothing of examples.
    return type(value).__name__
