"""Sizes, rates and times in words: `4 MB`, `500 Mbit/s`, `2.5 ms`.

Inside the program a size is a number of bytes, a rate a number of bytes per second and a time a number of seconds; only files
and output speak in words. Decimal prefixes are powers of 1000 (`MB`), binary ones of 1024 (`MiB`). A rate may be in bits
(`Mbit/s`, `Mbps`) or bytes (`MB/s`). A bare number is refused where a rate is asked for: nobody can tell bits from bytes.
"""

from __future__ import annotations

import math
import re

_PREFIXES = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_TIMES = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_WORD = re.compile(r"^\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ/]*)\s*$")
_SIZE_UNIT = re.compile(r"^(|[kKMGT]i?)(B|bytes?)$")
_RATE_UNIT = re.compile(r"^(|[kKMGT]i?)(bit|b|B|bytes?)(?:/s|ps)$")


def parse_size(text: str | int) -> int:
    """Bytes of a size in words; a whole number counts as bytes."""
    if isinstance(text, int) and not isinstance(text, bool):
        number, unit = float(text), "B"
    else:
        number, unit = _split(text, "a size such as '4 MB' or '256 KiB'")
    match = _SIZE_UNIT.match(unit or "B")
    if match is None:
        raise ValueError(f"{text!r} is no size; write one such as '4 MB' or '256 KiB'")
    return _whole(number * _prefix(match[1]), text)


def parse_rate(text: str) -> float:
    """Bytes per second of a rate in words."""
    number, unit = _split(text, "a rate such as '500 Mbit/s' or '25 GB/s'")
    match = _RATE_UNIT.match(unit)
    if match is None:
        raise ValueError(f"{text!r} is no rate; write one such as '500 Mbit/s' or '25 GB/s'")
    bytes_per_unit = 1.0 if match[2].startswith(("B", "byte")) else 1 / 8
    return _positive(number * _prefix(match[1]) * bytes_per_unit, text)


def parse_time(text: str) -> float:
    """Seconds of a time in words."""
    number, unit = _split(text, "a time such as '2.5 ms' or '10min'")
    if unit not in _TIMES:
        raise ValueError(f"{text!r} is no time; write one such as '2.5 ms' or '10min'")
    return number * _TIMES[unit]


def format_size(num_bytes: float) -> str:
    """`4 MB`, `1.5 kB`, `12 B`: decimal, four significant digits; see `exact_size` for one that reads back."""
    return _format(num_bytes, "B", (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)))


def exact_size(num_bytes: int) -> str:
    """The shortest size in words that reads back as the same number of bytes."""
    for prefix in ("Ti", "T", "Gi", "G", "Mi", "M", "Ki", "k"):
        if num_bytes and num_bytes % _PREFIXES[prefix] == 0:
            return f"{num_bytes // _PREFIXES[prefix]} {prefix}B"
    return f"{num_bytes} B"


def format_rate(bytes_per_second: float) -> str:
    """`500 Mbit/s`: network rates are spoken of in bits."""
    return _format(bytes_per_second * 8, "bit/s", (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)))


def exact_rate(bytes_per_second: float) -> str:
    """A rate in words that reads back as the same number of bytes per second."""
    text = format_rate(bytes_per_second)
    return text if parse_rate(text) == bytes_per_second else f"{bytes_per_second!r} B/s"


def format_time(seconds: float) -> str:
    """`2.5 ms`, `1.2 s`, `3 min 20 s`."""
    if seconds >= 100:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    return _format(seconds, "s", (("", 1.0), ("m", 1e-3), ("µ", 1e-6), ("n", 1e-9)))


def _format(number: float, unit: str, scales: tuple[tuple[str, float], ...]) -> str:
    for prefix, scale in scales:
        if abs(number) >= scale:
            return f"{number / scale:.4g} {prefix}{unit}"
    return f"{number:.4g} {unit}"


def _split(text: object, wanted: str) -> tuple[float, str]:
    if not isinstance(text, str) or len(text) > 64:
        raise ValueError(f"{text!r} is not {wanted}" if not isinstance(text, str) else f"not {wanted}")
    match = _WORD.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not {wanted}")
    return float(match[1]), match[2]


def _prefix(prefix: str) -> int:
    return _PREFIXES[{"K": "k", "ki": "Ki"}.get(prefix, prefix)]


def _whole(number: float, text: object) -> int:
    if not math.isfinite(number) or number != round(number):
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return round(number)


def _positive(number: float, text: object) -> float:
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{text!r} is not a finite rate above zero")
    return number
