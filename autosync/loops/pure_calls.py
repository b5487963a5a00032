"""The functions that a loop may call. They change nothing, and nearly all of them return a new value."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

BUILTINS = frozenset({"abs", "bool", "float", "int", "len", "max", "min", "pow", "round"})
"""Builtins that may be called on values. `range`, `enumerate` and `zip` are allowed only in the head of a `for`."""

FILES_AND_SCREENS = frozenset({"breakpoint", "input", "open", "print"})

METHODS = {
    "all": 1,
    "any": 1,
    "argmax": 1,
    "argmin": 1,
    "astype": 1,
    "copy": 0,
    "dot": 1,
    "item": 0,
    "max": 1,
    "mean": 1,
    "min": 1,
    "prod": 1,
    "sum": 1,
}
"""Methods of arrays that change nothing, with the number of arguments before those that could name an output."""

_NUMPY = {
    "all": 2,
    "any": 2,
    "argmax": 2,
    "argmin": 2,
    "argsort": 2,
    "array": 2,
    "clip": 3,
    "cumsum": 2,
    "dot": 2,
    "full": 3,
    "inner": 2,
    "linalg.norm": 1,
    "max": 2,
    "mean": 2,
    "min": 2,
    "ones": 2,
    "ones_like": 1,
    "outer": 2,
    "prod": 2,
    "searchsorted": 2,
    "sort": 1,
    "sum": 2,
    "vdot": 2,
    "where": 3,
    "zeros": 2,
    "zeros_like": 1,
}
_KEYWORDS = frozenset({"axis", "dtype", "keepdims"})
_MODULES = (np, math)


def refusal_of_module_call(module: ModuleType, path: str, num_arguments: int, keywords: list[str]) -> tuple[str, str]:
    """Return why a call of a module's function is refused and what is allowed; two empty strings if it is allowed."""
    name = f"{module.__name__}.{path}"
    if path.startswith("random.") or module.__name__ in {"random", "secrets"}:
        return f"{name} has a state that all records share", "random numbers are fields of the record"
    if module not in _MODULES:
        return f"calls {name}, of which nothing is known", "a loop calls numpy, math and its own arithmetic"
    function = _attribute(module, path)
    limit = _limit(module, path, function)
    if limit is None:
        return f"calls {name}, which may change or share what it gets", "known calls are listed in docs/loops.md"
    if num_arguments > limit or set(keywords) - _KEYWORDS:
        return f"{name} gets an output or an unknown option", "the result of a call is a new value"
    return "", ""


def _limit(module: ModuleType, path: str, function: Any) -> int | None:
    """Return the number of a function's arguments before those that could name an output; None if it is unknown."""
    if module is math:
        return 16 if callable(function) else None
    if isinstance(function, np.ufunc):
        return function.nin
    if isinstance(function, type) and issubclass(function, np.generic):
        return 1
    return _NUMPY.get(path)


def module_of(function: object) -> tuple[ModuleType, str] | None:
    """Return the module and the name of a function that was imported from numpy or math; None for any other value."""
    name = getattr(function, "__name__", None)
    if isinstance(name, str) and callable(function):
        for module in _MODULES:
            if getattr(module, name, None) is function:
                return module, name
    return None


def may_return_its_argument(module: ModuleType, path: str) -> bool:
    """Return whether a known function may return its own argument, as `numpy.float64` does."""
    return isinstance(_attribute(module, path), type)


def constant_of_module(module: ModuleType, path: str) -> bool:
    """Return whether a module's attribute is a number or a type of numbers, such as `math.pi` or `np.float32`."""
    if module not in _MODULES:
        return False
    value = _attribute(module, path)
    return isinstance(value, int | float) or (isinstance(value, type) and issubclass(value, np.generic))


def _attribute(module: ModuleType, path: str) -> Any:
    value: Any = module
    for name in path.split("."):
        value = getattr(value, name, None)
    return value
