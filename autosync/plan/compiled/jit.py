"""How the functions of the compiled lowering are compiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from autosync.compiled_cache import find_cache

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_CALLED: dict[str, Any] = {"nogil": True}
_INNER: dict[str, Any] = {**_CALLED, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

KEPT = find_cache(Path(__file__).parent)


def called(function: FunctionT) -> FunctionT:
    """For what Python calls."""
    return KEPT.compiled(function, _CALLED)


def inner(function: FunctionT) -> FunctionT:
    """For what compiled functions alone call. What Python needs to call it is not made, which is half of the work."""
    return KEPT.compiled(function, _INNER)
