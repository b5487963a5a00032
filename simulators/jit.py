"""The decorators that compile the functions of simulators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from autosync.compiled_cache import find_cache
from autosync.first_calls import CompiledFunction

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_BORROWS: dict[str, Any] = {"_nrt": False, "error_model": "numpy", "nogil": True}
_INNER: dict[str, Any] = {**_BORROWS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

KEPT = find_cache(Path(__file__).parent)


def borrows(function: FunctionT) -> FunctionT:
    """Compile a function that Python calls.

    It cannot make arrays: without their reference counts it compiles in about half the time.
    """
    return cast("FunctionT", CompiledFunction(KEPT.compiled(function, _BORROWS), on_lists=False))


def borrows_elements(function: FunctionT) -> FunctionT:
    """Compile as `borrows` does, for a function that reads and writes elements of arrays, and no slices.

    While it is not compiled, Python runs it on lists, which is much faster than on arrays.
    """
    return cast("FunctionT", CompiledFunction(KEPT.compiled(function, _BORROWS), on_lists=True))


def borrows_inner(function: FunctionT) -> FunctionT:
    """Compile as `borrows` does, for a function that only compiled functions call."""
    return KEPT.compiled(function, _INNER)


def inlined(function: FunctionT) -> FunctionT:
    """Compile as `borrows_inner` does, and inline the function into its few callers, so arguments cost nothing."""
    return KEPT.compiled(function, {**_INNER, "forceinline": True})
