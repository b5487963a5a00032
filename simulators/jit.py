"""The decorators that compile the functions of simulators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from autosync.compiled_cache import find_cache

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_BORROWS: dict[str, Any] = {"_nrt": False, "error_model": "numpy"}
_INNER: dict[str, Any] = {**_BORROWS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

KEPT = find_cache(Path(__file__).parent)


def borrows(function: FunctionT) -> FunctionT:
    """Compile a function that Python calls.

    It cannot make arrays: without their reference counts it compiles in about half the time.
    """
    return KEPT.compiled(function, _BORROWS)


def borrows_inner(function: FunctionT) -> FunctionT:
    """Compile as `borrows` does, for a function that only compiled functions call."""
    return KEPT.compiled(function, _INNER)


def inlined(function: FunctionT) -> FunctionT:
    """Compile as `borrows_inner` does, and inline the function into its few callers, so arguments cost nothing."""
    return KEPT.compiled(function, {**_INNER, "forceinline": True})
