"""The figures of costs by name, and their words in files.

One table says for each name what it is and where it belongs in `Costs`. `cost_profiles` reads files with these names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from autosync import units

Unit = Literal["time", "rate", "size", "share", "pace", "count"]

NONE = "none"
"""The word for a limit that there is not."""

_PACE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?)\s*([kMGT]?)/s\s*", re.ASCII)
_PACE_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_PACE_RULE = "write elements a second such as '200 M/s'"
_LONGEST_SECONDS = 60.0
_MOST_CORES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure of costs: its name in files, its unit, its place in `Costs`, and its meaning.

    `place` has the names of fields, and for one half of a pair its number. An optional figure may be `none`.
    """

    name: str
    unit: Unit
    place: tuple[str | int, ...]
    meaning: str
    is_optional: bool = False


def _pair(name: str, place: str, meaning: str) -> tuple[Figure, Figure]:
    """Return the figures of a message: our own, and one of the backend's collectives."""
    return (
        Figure(name=name, unit="time", place=("processor", place, 0), meaning=meaning),
        Figure(
            name=f"native_{name}",
            unit="time",
            place=("processor", place, 1),
            meaning=f"{meaning}, backend's collective",
        ),
    )


def _rate_of(kind: str, meaning: str) -> Figure:
    return Figure(name=f"{kind}_rate", unit="pace", place=("local_rates", kind), meaning=meaning)


FIGURES: Mapping[str, Figure] = {
    figure.name: figure
    for figure in (
        Figure(name="latency", unit="time", place=("hop_seconds",), meaning="travel time of a message between nodes"),
        Figure(
            name="latency_within",
            unit="time",
            place=("within", "hop_seconds"),
            meaning="travel time of a message within a node; none: as between nodes",
            is_optional=True,
        ),
        Figure(
            name="flow_limit",
            unit="rate",
            place=("flow_limit",),
            meaning="most that one connection between two nodes carries",
            is_optional=True,
        ),
        Figure(
            name="rate_within",
            unit="rate",
            place=("within", "rate"),
            meaning="rate between two ranks of a node without intra_bandwidth",
        ),
        Figure(
            name="payload_share",
            unit="share",
            place=("payload_share",),
            meaning="share of a link's rate that payload gets (timeline)",
        ),
        Figure(
            name="link_share",
            unit="share",
            place=("link_share",),
            meaning="share of a link's rate that payload gets (analytical)",
        ),
        Figure(name="socket_size", unit="size", place=("bytes_ahead",), meaning="bytes accepted ahead of a link"),
        Figure(
            name="queue_size",
            unit="size",
            place=("bytes_queued",),
            meaning="most bytes in the queue of a receiver's link",
        ),
        Figure(
            name="queue_time",
            unit="time",
            place=("queued_seconds",),
            meaning="longest wait in the queue of a sender's link",
        ),
        Figure(name="reduction_rate", unit="rate", place=("rate_added",), meaning="bytes that a rank adds up"),
        Figure(
            name="server_cores",
            unit="count",
            place=("servers", "num_cores"),
            meaning="cores of a server that add up contributions, each at reduction_rate",
        ),
        Figure(
            name="server_update_rate",
            unit="pace",
            place=("servers", "update_rate"),
            meaning="elements that a server updates; none: as fast as the workers' devices",
            is_optional=True,
        ),
        Figure(
            name="probed_message",
            unit="time",
            place=("probed_message_seconds",),
            meaning="processor time of a probe's message where the times below hold; none: a probe does not scale them",
            is_optional=True,
        ),
        Figure(name="launch", unit="time", place=("processor", "transfer"), meaning="start of a transfer (timeline)"),
        Figure(
            name="reducer_launch",
            unit="time",
            place=("processor", "stock_transfer"),
            meaning="start of a transfer of torch's reducer (timeline)",
        ),
        Figure(
            name="reducer_threads",
            unit="count",
            place=("stock_threads",),
            meaning="transfers of torch's reducer at a time",
        ),
        Figure(name="transfer", unit="time", place=("transfer_seconds",), meaning="shortest transfer (analytical)"),
        Figure(name="round", unit="time", place=("round_seconds",), meaning="wait of a round (analytical)"),
        Figure(
            name="native_round",
            unit="time",
            place=("native_round_seconds",),
            meaning="wait of a round between nodes, backend's collective (analytical)",
        ),
        Figure(
            name="native_round_within",
            unit="time",
            place=("within", "native_round_seconds"),
            meaning="the same within a node; none: as between nodes",
            is_optional=True,
        ),
        Figure(name="local", unit="time", place=("local_seconds",), meaning="shortest local operation (analytical)"),
        Figure(
            name="local_launch",
            unit="time",
            place=("processor", "local"),
            meaning="start of a local operation (timeline)",
        ),
        *_pair("ask", "ask", "request of a message"),
        *_pair("post", "post", "post of a message"),
        *_pair("asked", "asked", "arrival of a request"),
        *_pair("arrived", "arrived", "arrival of a message"),
        *_pair("taken", "taken", "receipt of a message"),
        Figure(
            name="byte",
            unit="time",
            place=("processor", "per_byte", 0),
            meaning="processor time of a byte to another node, both ends",
        ),
        Figure(
            name="byte_within",
            unit="time",
            place=("processor", "per_byte", 1),
            meaning="processor time of a byte within a node, both ends",
        ),
        Figure(name="gradient", unit="time", place=("processor", "gradient"), meaning="work for a ready gradient"),
        Figure(
            name="reducer_gradient",
            unit="time",
            place=("processor", "stock_gradient"),
            meaning="work for a ready gradient in torch's reducer",
        ),
        Figure(name="update", unit="time", place=("processor", "update"), meaning="work for a variable in a step"),
        Figure(name="step", unit="time", place=("processor", "step"), meaning="work for a step"),
        Figure(
            name="reducer_step",
            unit="time",
            place=("processor", "stock_step"),
            meaning="work for a step in which torch's reducer communicates (timeline)",
        ),
        _rate_of("average", "elements averaged"),
        _rate_of("norm", "elements of a norm"),
        _rate_of("copy", "elements copied"),
        _rate_of("take", "elements taken from a buffer"),
        _rate_of("merge_rows", "elements of rows merged"),
        _rate_of("read_rows", "elements of rows read"),
        _rate_of("write_rows", "elements of rows written"),
        _rate_of("rebuild", "multiplications to rebuild a gradient from factors"),
        _rate_of("outer", "elements of the outer optimizer"),
        _rate_of("encode", "elements encoded by a codec"),
        _rate_of("decode", "elements decoded"),
        _rate_of("project", "elements projected by PowerSGD"),
    )
}
"""All figures, in the order in which output shows them."""


def figure_in_words(name: str, value: float | None) -> str:
    """Format a figure for people: `30 µs`, `2.5 GB/s`, `none`."""
    if value is None:
        return NONE
    match FIGURES[name].unit:
        case "time":
            return units.format_time(value)
        case "rate":
            return f"{units.format_size(value)}/s"
        case "size":
            return units.format_size(value)
        case "pace":
            return f"{units.format_size(value).removesuffix('B').strip()}/s"
        case "count":
            return f"{value:.0f}"
        case "share":
            return f"{value:g}"


def figure_for_file(name: str, value: float | None) -> str | float | int:
    """Return a figure as files have it, so that it reads back as the same number."""
    figure = FIGURES[name]
    if value is None:
        return NONE
    if figure.unit == "count":
        return int(value)
    if figure.unit == "share":
        return value
    if figure.unit == "size":
        return units.exact_size(int(value))
    words = figure_in_words(name, value)
    exact = {"time": f"{value!r} s", "rate": f"{value!r} B/s", "pace": f"{value!r}/s"}[figure.unit]
    return words if _reads_as(figure, words, value) else exact


def _reads_as(figure: Figure, words: str, value: float) -> bool:
    try:
        return read_figure(figure, words) == value
    except ValueError:
        return False


def read_figure(figure: Figure, words: Any) -> float | None:
    """Return a figure from its words; raise ValueError with what is wrong and, in brackets, the rule."""
    if figure.is_optional and words == NONE:
        return None
    value = _READERS[figure.unit](words)
    wrong = wrong_figure(figure, value)
    if wrong:
        raise ValueError(f"{words!r} {wrong} ({rule_of(figure)})")
    return value


def wrong_figure(figure: Figure, value: float | None) -> str:
    """Return what is wrong with a figure; empty if nothing is."""
    if value is None:
        return "" if figure.is_optional else "is no figure"
    if figure.unit == "share":
        right = 0 < value <= 1
    elif figure.unit == "time":
        right = 0 <= value <= _LONGEST_SECONDS
    elif figure.unit == "count":
        right = value == int(value) and 1 <= value <= _MOST_CORES
    elif figure.unit == "size":
        right = value >= 0
    else:
        right = value > 0
    return "" if right and math.isfinite(value) else "is out of range"


def rule_of(figure: Figure) -> str:
    return {
        "share": "a share is a number above 0, at most 1",
        "time": f"a time of 0 to {_LONGEST_SECONDS:.0f} s",
        "count": f"a whole number from 1 to {_MOST_CORES}",
        "size": "a size of 0 or more",
        "rate": "a rate is finite and above zero",
        "pace": "elements a second are finite and above zero",
    }[figure.unit] + (f", or {NONE}" if figure.is_optional else "")


def _read_number(words: Any) -> float:
    if isinstance(words, bool) or not isinstance(words, int | float):
        raise ValueError(f"{words!r} is no number (write a number)")  # noqa: TRY004 - the message is for a file
    return float(words)


def _read_size(words: Any) -> float:
    return float(units.parse_size(words))


def _read_pace(words: Any) -> float:
    match = _PACE.fullmatch(words) if isinstance(words, str) else None
    if match is None:
        raise ValueError(f"{words!r} is no pace ({_PACE_RULE})")
    return float(match[1]) * _PACE_PREFIXES[match[2]]


_READERS: Mapping[Unit, Callable[[Any], float]] = {
    "time": units.parse_time,
    "rate": units.parse_rate,
    "size": _read_size,
    "share": _read_number,
    "pace": _read_pace,
    "count": _read_number,
}
