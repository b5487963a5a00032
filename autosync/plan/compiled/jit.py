"""How the functions of the compiled lowering are compiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

from autosync.stale import drop_stale

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_CALLED: dict[str, Any] = {"cache": True, "nogil": True}
_INNER: dict[str, Any] = {**_CALLED, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

drop_stale(Path(__file__).parent)


def called(function: FunctionT) -> FunctionT:
    """For what Python calls."""
    return cast("FunctionT", numba.njit(**_CALLED)(function))


def inner(function: FunctionT) -> FunctionT:
    """For what compiled functions alone call. What Python needs to call it is not made, which is half of the work."""
    return cast("FunctionT", numba.njit(**_INNER)(function))
