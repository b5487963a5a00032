"""How what a strategy makes of a behaviour is compared with what stock DDP makes of it on the same rank."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autosync.errors import AutosyncError

# Of what is summed in another order; the suite trains in float64 wherever a behaviour is not about other types.
TOLERANCES = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 2e-5, torch.complex64: 2e-5}
_NEARLY_EQUAL = 1e-9
_LONGEST = 400
# What the errors of ranks say that have waited for another in vain.
_WAITED = ("no end within", "Timed out", "timeout", "Connection closed by peer", "has not answered")


def outcome(act: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """What came of a behaviour: its values, or its error."""
    try:
        return act(), None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, it is the result
        return None, error


def difference(found: Any, expected: Any, tolerance: float | None) -> str:
    """The first value that is not as expected, in words; empty if there is none."""
    if found.keys() != expected.keys():
        return f"the values are {list(found)[:9]}, stock DDP's {list(expected)[:9]}"
    for name, value in expected.items():
        words = _unlike(found[name], value, tolerance)
        if words:
            return f"{name}: {words}"[:_LONGEST]
    return ""


def _unlike(found: Any, expected: Any, tolerance: float | None) -> str:
    if isinstance(expected, Tensor) and isinstance(found, Tensor):
        if (found.dtype, found.shape) != (expected.dtype, expected.shape):
            return f"{found.dtype} {tuple(found.shape)} for {expected.dtype} {tuple(expected.shape)}"
        allowed = tolerance or TOLERANCES.get(expected.dtype, _NEARLY_EQUAL)
        if torch.allclose(found, expected, rtol=allowed, atol=allowed, equal_nan=True):
            return ""
        return f"off by {float((found.double() - expected.double()).abs().max()):.3g}"
    if isinstance(expected, float) and isinstance(found, float):
        allowed = tolerance or _NEARLY_EQUAL
        both_nan = math.isnan(found) and math.isnan(expected)
        near = both_nan or abs(found - expected) <= allowed * (1 + abs(expected))
        return "" if near else f"{found} for {expected}"
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        unlike = (_unlike(f, e, tolerance) for f, e in zip(found, expected, strict=True))
        return next((f"[{number}] {words}" for number, words in enumerate(unlike) if words), "")
    return "" if found == expected else f"{found!r} for {expected!r}"


def said(error: BaseException) -> str:
    """An error in a line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST]


def verdict(
    found: tuple[Any, BaseException | None], expected: Any, *, ends: str, tolerance: float | None
) -> tuple[str, str]:
    """`same`, `refused`, `waited`, `raised` or `wrong`, and what there is to say.

    `ends` is how stock DDP ends, where it does so with an error: what it does not train needs no answer of ours.
    """
    values, error = found
    if error is not None:
        words = said(error)
        if any(word in words for word in _WAITED):
            return "waited", words
        kind = type(error).__name__
        if ends and (isinstance(error, AutosyncError) or ends.startswith(kind)):
            return "same", f"stock DDP ends with {ends}; here {words}"[:_LONGEST]
        return ("refused" if isinstance(error, AutosyncError) else "raised"), words
    if ends:
        return "more", f"stock DDP ends with {ends}"
    words = difference(values, expected, tolerance)
    return ("wrong", words) if words else ("same", "")
