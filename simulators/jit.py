"""How simulators' functions are compiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from autosync.compiled_cache import find_cache

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_CALLED: dict[str, Any] = {}
_INNER: dict[str, Any] = {**_CALLED, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_BORROWS: dict[str, Any] = {**_CALLED, "_nrt": False, "error_model": "numpy"}

KEPT = find_cache(Path(__file__).parent)


def called(function: FunctionT) -> FunctionT:
    """For functions that Python calls."""
    return KEPT.compiled(function, _CALLED)


def borrows(function: FunctionT) -> FunctionT:
    """For functions that Python calls and that make no arrays: no reference counts, which take most of the time."""
    return KEPT.compiled(function, _BORROWS)


def borrows_inner(function: FunctionT) -> FunctionT:
    """The same for functions that only compiled functions call."""
    return KEPT.compiled(function, {**_INNER, **_BORROWS})


def inlined(function: FunctionT) -> FunctionT:
    """The same for functions with few callers: each becomes a part of its callers, so its arguments cost nothing."""
    return KEPT.compiled(function, {**_INNER, **_BORROWS, "forceinline": True})


def inner(function: FunctionT) -> FunctionT:
    """For functions that only compiled functions call. Without an entry for Python they compile in half the time."""
    return KEPT.compiled(function, _INNER)
