"""How the timeline's functions are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"cache": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def inner(function: FunctionT) -> FunctionT:
    """For what compiled functions alone call. What Python needs to call it is not made, which is half of the work."""
    return cast("FunctionT", numba.njit(**_OPTIONS)(function))
