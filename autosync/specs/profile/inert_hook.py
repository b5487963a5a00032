"""What a hook of ours becomes where it is copied or pickled: a model's copy is not followed."""

from __future__ import annotations

import contextlib
from typing import Any


def as_nothing() -> tuple[Any, ...]:
    """Return what `__reduce__` of a hook returns: a copy does nothing, and what is pickled needs none of our code."""
    return getattr, (contextlib.nullcontext(), "__exit__")
