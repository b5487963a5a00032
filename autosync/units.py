"""Sizes, rates and times in words: `4 MB`, `500 Mbit/s`, `2.5 ms`.

Inside the program, a size is a number of bytes, a rate is bytes per second, and a time is seconds; only files and
output have words. Decimal prefixes are powers of 1000 (`MB`), binary ones of 1024 (`MiB`). A rate may be in bits
(`Mbit/s`, `Mbps`) or bytes (`MB/s`). A bare number is refused as a rate: it could be bits or bytes.

Units are read in any case. Only the single letter of a rate depends on it, `b` for bits and `B` for bytes. So a rate
with that letter in a case that people use for both (`mb/s`, `MBPS`) is refused.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

_PREFIXES = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
_TIMES = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "ms": Fraction(1, 10**3),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
}
# Three digits of exponent hold every float; a huge number would take long to compute.
_WORD = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?)\s*([A-Za-zµ/]*)\s*", re.ASCII)
_SIZE_UNIT = re.compile(r"(|[kmgt]i?)(b|bytes?)", re.IGNORECASE | re.ASCII)
_RATE_UNIT = re.compile(r"(|[kmgt]i?)(bits?|b|bytes?)(/s|ps)", re.IGNORECASE | re.ASCII)
_SIZE_RULE = "write a size such as '4 MB' or '256 KiB'"
_RATE_RULE = "write a rate such as '500 Mbit/s' or '25 GB/s'"
_TIME_RULE = "write a time such as '2.5 ms' or '10min'"
_MAX_SIZE = 2**63 - 1
_MAX_LENGTH = 64


def parse_size(text: str | int) -> int:
    """Return the bytes of a size in words; a whole number counts as bytes."""
    if isinstance(text, int) and not isinstance(text, bool):
        number, unit = Fraction(text), "B"
    else:
        number, unit = _split(text, "size", _SIZE_RULE)
    match = _SIZE_UNIT.fullmatch(unit or "B")
    if match is None:
        raise ValueError(f"{text!r} is no size ({_SIZE_RULE})")
    num_bytes = number * _PREFIXES[match[1].lower()]
    if num_bytes.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of bytes ({_SIZE_RULE})")
    if not 0 <= num_bytes <= _MAX_SIZE:
        raise ValueError(f"{text!r} is out of range (a size is 0 or more and below 2^63 bytes)")
    return int(num_bytes)


def parse_rate(text: str) -> float:
    """Return the bytes per second of a rate in words."""
    number, unit = _split(text, "rate", _RATE_RULE)
    match = _RATE_UNIT.fullmatch(unit)
    if match is None:
        raise ValueError(f"{text!r} is no rate ({_RATE_RULE})")
    prefix, word, end = match.groups()
    if word in ("b", "B") and _is_bit_or_byte(prefix, word, end):
        raise ValueError(f"{text!r} could be bits or bytes ({_RATE_RULE})")
    units_per_byte = 1 if word == "B" or word.lower().startswith("byte") else 8
    rate = _float(number * _PREFIXES[prefix.lower()] / units_per_byte)
    if not (math.isfinite(rate) and rate > 0):
        raise ValueError(f"{text!r} is out of range (a rate is finite and above zero)")
    return rate


def parse_time(text: str) -> float:
    """Return the seconds of a time in words."""
    number, unit = _split(text, "time", _TIME_RULE)
    if unit.lower() not in _TIMES:
        raise ValueError(f"{text!r} is no time ({_TIME_RULE})")
    seconds = _float(number * _TIMES[unit.lower()])
    if not math.isfinite(seconds):
        raise ValueError(f"{text!r} is out of range (a time is finite)")
    return seconds


def format_size(num_bytes: float) -> str:
    """Format a size with four significant digits: `4 MB`, `1.5 kB`. `exact_size` gives all digits."""
    return _format(num_bytes, "B", (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)))


def exact_size(num_bytes: int) -> str:
    """Format a size in the largest unit that reads back as the same number of bytes."""
    for prefix in ("Ti", "T", "Gi", "G", "Mi", "M", "Ki", "k"):
        factor = _PREFIXES[prefix.lower()]
        if num_bytes and num_bytes % factor == 0:
            return f"{num_bytes // factor} {prefix}B"
    return f"{num_bytes} B"


def format_rate(bytes_per_second: float) -> str:
    """Format a rate as `500 Mbit/s`: network rates are usually given in bits."""
    return _format(bytes_per_second * 8, "bit/s", (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)))


def exact_rate(bytes_per_second: float) -> str:
    """Format a rate so that it reads back as the same number of bytes per second."""
    plain = f"{bytes_per_second!r} B/s"
    if not math.isfinite(bytes_per_second * 8):
        return plain
    text = format_rate(bytes_per_second)
    # The four digits of a tiny rate may all be zero.
    return text if _reads_as(text, bytes_per_second) else plain


def format_time(seconds: float) -> str:
    """Format a time: `2.5 ms`, `1.2 s`, `3 min 20 s`, `2 h 5 min`."""
    if not math.isfinite(seconds) or seconds < 100:
        return _format(seconds, "s", (("", 1.0), ("m", 1e-3), ("µ", 1e-6), ("n", 1e-9)))
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _is_bit_or_byte(prefix: str, letter: str, end: str) -> bool:
    """Whether the case of a rate's `b` or `B` does not tell bits from bytes: `MBPS`, `mb/s`. `mbps` is always bits."""
    is_capitals = end != end.lower()
    is_small = letter == "b" and end == "/s" and prefix[:1] in ("m", "g", "t")
    return is_capitals or is_small


def _reads_as(text: str, bytes_per_second: float) -> bool:
    try:
        return parse_rate(text) == bytes_per_second
    except ValueError:
        return False


def _format(number: float, unit: str, scales: tuple[tuple[str, float], ...]) -> str:
    for prefix, scale in scales:
        if abs(number) >= scale:
            return f"{number / scale:.4g} {prefix}{unit}"
    return f"{number:.4g} {unit}"


def _split(text: object, wanted: str, rule: str) -> tuple[Fraction, str]:
    match = _WORD.fullmatch(text) if isinstance(text, str) and len(text) <= _MAX_LENGTH else None
    if match is None:
        shown = repr(text)
        raise ValueError(f"{shown if len(shown) <= _MAX_LENGTH else 'this'} is no {wanted} ({rule})")
    return Fraction(match[1]), match[2]


def _float(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf
