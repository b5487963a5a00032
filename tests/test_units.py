"""Sizes, rates and times in words, and back."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autosync import units


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0", 0),
        (0, 0),
        (4096, 4096),
        ("4096", 4096),
        ("4 MB", 4_000_000),
        ("4MB", 4_000_000),
        ("  4  MB ", 4_000_000),
        ("1.5 kB", 1500),
        ("1.5 KB", 1500),
        ("256 KiB", 262_144),
        ("1 kiB", 1024),
        ("1 GiB", 2**30),
        ("2 TiB", 2**41),
        ("3 TB", 3 * 10**12),
        ("12 bytes", 12),
        ("4 mb", 4_000_000),
        ("4 gB", 4_000_000_000),
        ("1 KIB", 1024),
        ("1 byte", 1),
        ("0.1 kB", 100),
        ("1e3 B", 1000),
        ("9223372036854775807", 2**63 - 1),
        ("9007199254740993 B", 2**53 + 1),
    ],
)
def test_sizes(text: str | int, num_bytes: int) -> None:
    assert units.parse_size(text) == num_bytes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"^'' is no size \(write a size such as '4 MB' or '256 KiB'\)$"),
        ("MB", r"^'MB' is no size \("),
        ("4 Mbit", r"^'4 Mbit' is no size \("),
        ("-4 MB", r"^'-4 MB' is no size \("),
        ("4 MB\n5", "is no size"),
        ("1.5 B", r"^'1\.5 B' is not a whole number of bytes \("),
        ("1e-999 B", "is not a whole number of bytes"),
        ("1e999 B", "is out of range"),
        ("1e999999999 B", "is no size"),
        ("9223372036854775808", "is out of range"),
        (-1, r"^-1 is out of range \(a size is 0 or more and below 2\^63 bytes\)$"),
        (10**400, "is out of range"),
        (True, "^True is no size"),
        (1.5, "^1.5 is no size"),
        (None, "^None is no size"),
        ({"a": 1}, "is no size"),
        ("4" * 65, "^this is no size"),
        ("٤ MB", "is no size"),
    ],
)
def test_what_is_no_size(text: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        units.parse_size(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [
        ("500 Mbit/s", 62.5e6),
        ("500 Mbps", 62.5e6),
        ("500 Mb/s", 62.5e6),
        ("25 GB/s", 25e9),
        ("25 GBps", 25e9),
        ("1 GiB/s", 2.0**30),
        ("100 kbit/s", 12_500.0),
        ("100 Kbit/s", 12_500.0),
        ("10 gbit/s", 1.25e9),
        ("10 GBIT/S", 1.25e9),
        ("10 gbps", 1.25e9),
        ("100 kb/s", 12_500.0),
        ("8 bits/s", 1.0),
        ("8 bit/s", 1.0),
        ("3 bytes/s", 3.0),
        ("1.1 Gbit/s", 137_500_000.0),
        ("1e-300 B/s", 1e-300),
    ],
)
def test_rates(text: str, bytes_per_second: float) -> None:
    assert units.parse_rate(text) == bytes_per_second


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (25, r"^25 is no rate \(write a rate such as '500 Mbit/s' or '25 GB/s'\)$"),
        ("25", "^'25' is no rate"),
        ("500 mb/s", r"^'500 mb/s' could be bits or bytes \(write a rate such as '500 Mbit/s' or '25 GB/s'\)$"),
        ("500 MBPS", "^'500 MBPS' could be bits or bytes"),
        ("500 MB/S", "^'500 MB/S' could be bits or bytes"),
        ("500 Mbit", "^'500 Mbit' is no rate"),
        ("0 Mbit/s", r"^'0 Mbit/s' is out of range \(a rate is finite and above zero\)$"),
        ("1e999 B/s", "out of range"),
        ("1e-999 B/s", "out of range"),
        ("-1 B/s", "is no rate"),
        ("inf B/s", "is no rate"),
        ("nan", "is no rate"),
        (None, "is no rate"),
    ],
)
def test_what_is_no_rate(text: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        units.parse_rate(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2.5 ms", 0.0025),
        ("10min", 600.0),
        ("1 h", 3600.0),
        ("3 us", 3e-6),
        ("3 µs", 3e-6),
        ("7 ns", 7e-9),
        ("2 MIN", 120.0),
        ("2.5 MS", 0.0025),
        ("0 s", 0.0),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert units.parse_time(text) == seconds


@pytest.mark.parametrize("text", ["10", "10 m", "ms", "-1 s", "1e999 s", "1 h 5 min", "", 10, None])
def test_what_is_no_time(text: object) -> None:
    with pytest.raises(ValueError, match=r"is (no time|out of range) \("):
        units.parse_time(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (units.format_size(0), "0 B"),
        (units.format_size(999), "999 B"),
        (units.format_size(1500), "1.5 kB"),
        (units.format_size(4_000_000), "4 MB"),
        (units.format_size(1.3424e9), "1.342 GB"),
        (units.format_rate(62.5e6), "500 Mbit/s"),
        (units.format_rate(1.25e9), "10 Gbit/s"),
        (units.format_rate(1.0), "8 bit/s"),
        (units.format_time(0.0), "0 s"),
        (units.format_time(0.0025), "2.5 ms"),
        (units.format_time(3.2e-6), "3.2 µs"),
        (units.format_time(5e-9), "5 ns"),
        (units.format_time(1.234), "1.234 s"),
        (units.format_time(99.96), "99.96 s"),
        (units.format_time(200.4), "3 min 20 s"),
        (units.format_time(3599.7), "1 h 0 min"),
        (units.format_time(7500), "2 h 5 min"),
        (units.format_time(math.inf), "inf s"),
        (units.exact_size(0), "0 B"),
        (units.exact_size(4_000_000), "4 MB"),
        (units.exact_size(2**20), "1 MiB"),
        (units.exact_size(1500), "1500 B"),
        (units.exact_rate(62.5e6), "500 Mbit/s"),
        (units.exact_rate(123_456_789.0), "123456789.0 B/s"),
    ],
)
def test_words(written: str, text: str) -> None:
    assert written == text


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_an_exact_size_reads_back(num_bytes: int) -> None:
    assert units.parse_size(units.exact_size(num_bytes)) == num_bytes


@given(st.floats(min_value=0, exclude_min=True, allow_infinity=False))
@example(5e-324)
@example(1.7976931348623157e308)
@example(1e308)
@example(0.1)
def test_an_exact_rate_reads_back(bytes_per_second: float) -> None:
    assert units.parse_rate(units.exact_rate(bytes_per_second)) == bytes_per_second


@st.composite
def _in_any_case(draw: st.DrawFn, unit: str) -> str:
    flips = draw(st.lists(st.booleans(), min_size=len(unit), max_size=len(unit)))
    return "".join(c.upper() if flip else c.lower() for c, flip in zip(unit, flips, strict=True))


@given(st.data(), st.sampled_from(("kB", "KiB", "MB", "MiB", "GB", "GiB", "TB", "TiB", "bytes")))
def test_sizes_are_read_in_any_case(data: st.DataObject, unit: str) -> None:
    assert units.parse_size(f"3 {data.draw(_in_any_case(unit))}") == units.parse_size(f"3 {unit}")


@given(st.data(), st.sampled_from(("ns", "us", "µs", "ms", "s", "min", "h")))
def test_times_are_read_in_any_case(data: st.DataObject, unit: str) -> None:
    text = data.draw(_in_any_case(unit).filter(str.isascii) if unit.isascii() else st.just(unit))
    assert units.parse_time(f"3 {text}") == units.parse_time(f"3 {unit}")


@given(st.data(), st.sampled_from(("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s", "kbyte/s", "GiByte/s", "Mbitps")))
def test_rates_in_words_are_read_in_any_case(data: st.DataObject, unit: str) -> None:
    assert units.parse_rate(f"3 {data.draw(_in_any_case(unit))}") == units.parse_rate(f"3 {unit}")


@given(st.data(), st.sampled_from(("Mb/s", "Gb/s", "MB/s", "GiB/s", "Mbps", "Gbps", "GBps")))
def test_a_rate_by_letter_is_refused_rather_than_read_as_bits_for_bytes(data: st.DataObject, unit: str) -> None:
    text = data.draw(_in_any_case(unit))
    letter = next(c for c in text if c in "bB")
    usual = unit.replace("b", letter).replace("B", letter)
    try:
        assert units.parse_rate(f"3 {text}") == units.parse_rate(f"3 {usual}")
    except ValueError as error:
        assert "could be bits or bytes" in str(error)  # noqa: PT017 - either of the two


@given(st.text(max_size=80) | st.floats() | st.integers() | st.none() | st.lists(st.integers()))
def test_anything_else_is_refused_in_words(text: object) -> None:
    for parse in (units.parse_size, units.parse_rate, units.parse_time):
        assert _refusal(parse, text).endswith(")")


def _refusal(parse: Callable[[Any], float], text: object) -> str:
    """What the parser says of the text; for a text that it takes, the text in brackets."""
    try:
        value = parse(text)
    except ValueError as error:
        return str(error)
    assert value >= 0
    return f"({text})"
