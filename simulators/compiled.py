"""How simulators' functions are compiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

from autosync.stale import drop_stale

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_CALLED: dict[str, Any] = {"cache": True}
_INNER: dict[str, Any] = {**_CALLED, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_BORROWS: dict[str, Any] = {**_CALLED, "_nrt": False, "error_model": "numpy"}

drop_stale(Path(__file__).parent)


def called(function: FunctionT) -> FunctionT:
    """For what Python calls."""
    return cast("FunctionT", numba.njit(**_CALLED)(function))


def borrows(function: FunctionT) -> FunctionT:
    """For what makes no arrays. Nobody counts then who has those it is given, which takes most of the time else."""
    return cast("FunctionT", numba.njit(**_BORROWS)(function))


def borrows_inner(function: FunctionT) -> FunctionT:
    """The same for what compiled functions alone call."""
    return cast("FunctionT", numba.njit(**{**_INNER, **_BORROWS})(function))


def inlined(function: FunctionT) -> FunctionT:
    """The same for what is called from few places: it becomes part of its callers, and nobody is given anything."""
    return cast("FunctionT", numba.njit(**{**_INNER, **_BORROWS, "forceinline": True})(function))


def inner(function: FunctionT) -> FunctionT:
    """For what compiled functions alone call. What Python needs to call it is not made, which is half of the work."""
    return cast("FunctionT", numba.njit(**_INNER)(function))
