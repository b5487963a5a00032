"""Checks the options of presets: each function returns the value in its plain form or raises InputError."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from autosync.errors import InputError, Problem, did_you_mean
from autosync.units import parse_size, parse_time


def size_option(name: str, value: object, *, minimum: int = 1) -> int:
    """Return a size in bytes, given as a whole number or in words such as `4 MB`."""
    rule = f"a size of {minimum} B or more, such as '4 MB'"
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise _wrong(name, value, rule)
    try:
        size = parse_size(value)
    except ValueError as error:
        raise _wrong(name, value, rule) from error
    if size < minimum:
        raise _wrong(name, value, rule)
    return size


def time_option(name: str, value: object) -> float:
    """Return the seconds of a time in words such as `2.5 ms`; `0 s` is allowed."""
    rule = "a time such as '2.5 ms'"
    if not isinstance(value, str):
        raise _wrong(name, value, rule)
    try:
        return parse_time(value)
    except ValueError as error:
        raise _wrong(name, value, rule) from error


def count_option(name: str, value: object, *, minimum: int = 1) -> int:
    """Return a whole number of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise _wrong(name, value, f"a whole number, {minimum} or more")
    return value


def number_option(name: str, value: object, *, rule: str, holds: Callable[[float], bool]) -> float:
    """Return a number for which `holds` is true, as a float; `rule` says the same in words."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not holds(value):
        raise _wrong(name, value, rule)
    return float(value)


def flag_option(name: str, value: object) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise _wrong(name, value, "true or false")
    return value


def word_option(name: str, value: object, known: Sequence[str]) -> str:
    """Return one of the known words."""
    if not isinstance(value, str) or value not in known:
        hint = did_you_mean(value, known) if isinstance(value, str) else ""
        raise _wrong(name, value, f"one of {', '.join(known)}", hint)
    return value


def _wrong(name: str, value: object, rule: str, hint: str = "") -> InputError:
    return InputError([Problem(what=f"{value!r} is no {name}", rule=rule, path=(name,), hint=hint)])
