"""The decorators that compile the functions of the compiled lowering."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from autosync.compiled_cache import find_cache
from autosync.first_calls import CompiledFunction

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_CALLED: dict[str, Any] = {"nogil": True}
_INNER: dict[str, Any] = {**_CALLED, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

KEPT = find_cache(Path(__file__).parent)


def called(function: FunctionT) -> FunctionT:
    """Compile a function that Python calls."""
    return cast("FunctionT", CompiledFunction(KEPT.compiled(function, _CALLED), on_lists=False))


def inner(function: FunctionT) -> FunctionT:
    """Compile a function that only compiled functions call; without wrappers for Python this takes half the time."""
    return KEPT.compiled(function, _INNER)
