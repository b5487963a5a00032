"""The decorators that compile the functions of simulators."""

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
    """Compile a function that Python calls."""
    return KEPT.compiled(function, _CALLED)


def borrows(function: FunctionT) -> FunctionT:
    """Compile a function that Python calls and that makes no arrays.

    It has no reference counts, which would take most of the time.
    """
    return KEPT.compiled(function, _BORROWS)


def borrows_inner(function: FunctionT) -> FunctionT:
    """Compile as `borrows` does, for a function that only compiled functions call."""
    return KEPT.compiled(function, {**_INNER, **_BORROWS})


def inlined(function: FunctionT) -> FunctionT:
    """Compile as `borrows_inner` does, and inline the function into its few callers, so arguments cost nothing."""
    return KEPT.compiled(function, {**_INNER, **_BORROWS, "forceinline": True})


def inner(function: FunctionT) -> FunctionT:
    """Compile a function that only compiled functions call. Without an entry for Python this takes half the time."""
    return KEPT.compiled(function, _INNER)
