"""The table of contestants that a comparison or a proof shows, in at most 100 columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autosync import units
from autosync.strategy.wording import WIDTH, format_table, wrapped

if TYPE_CHECKING:
    from autosync.datasets.schema import Measurement
    from autosync.specs.model import ModelSpec
    from autosync.trials.statistics import Interval

LONG_NAME = 26
Figure = tuple[float, float, float]
"""A value and the ends of its 95 % interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContestRow:
    """A contestant. Figures that are unknown are None; `speedup` is over the first contestant, which has none."""

    name: str
    milliseconds: Figure
    speedup: Figure | None
    exposed_seconds: float | None
    bytes_sent: float | None
    peak_memory_bytes: float | None
    cpu_share: float | None
    flags: Sequence[str]


def rows_of(
    measurements: Mapping[str, Measurement], speedups: Mapping[str, Interval], model: ModelSpec
) -> list[ContestRow]:
    """Return a row for each measurement, by its contestant's name. Waits for input are no communication."""
    from autosync.search.headroom import input_wait

    return [
        ContestRow(
            name=name,
            milliseconds=(one.median_seconds * 1e3, one.low_seconds * 1e3, one.high_seconds * 1e3),
            speedup=None if (ratio := speedups.get(name)) is None else (ratio.value, ratio.low, ratio.high),
            exposed_seconds=(
                None if one.exposed_seconds is None else max(one.exposed_seconds - input_wait(one, model), 0.0)
            ),
            bytes_sent=None if one.bytes_sent is None else max(one.bytes_sent),
            peak_memory_bytes=max(one.peak_memory_bytes),
            cpu_share=one.cpu_share,
            flags=one.flags,
        )
        for name, one in measurements.items()
    ]


def format_contest(rows: Sequence[ContestRow]) -> str:
    """Return a line for each contestant, and below them what is much the same for all: memory, processors, flags."""
    lines = _table(rows, longest=WIDTH)
    if max(map(len, lines)) > WIDTH:
        lines = _table(rows, longest=LONG_NAME)
    return "\n".join([*lines, *wrapped(_below(rows))])


def _table(rows: Sequence[ContestRow], *, longest: int) -> list[str]:
    """Return the lines of the table. A name that is longer has a line of its own, above its figures."""
    header = ("", "ms a step (95 % range)", "speed-up (95 % range)", "not hidden", "sent")
    cells = [("" if len(row.name) > longest else row.name, *_cells(row, is_first=row is rows[0])) for row in rows]
    first, *others = format_table(cells, header=header, right=("not hidden", "sent")).split("\n")
    lines = [first]
    for row, line in zip(rows, others, strict=True):
        lines += [line] if len(row.name) <= longest else [row.name, line]
    return lines


def _cells(row: ContestRow, *, is_first: bool) -> tuple[str, ...]:
    return (
        _with_range(row.milliseconds, ".2f"),
        ("1" if is_first else "") if row.speedup is None else _with_range(row.speedup, ".3f"),
        "" if row.exposed_seconds is None else units.format_time(row.exposed_seconds),
        "" if row.bytes_sent is None else units.format_size(row.bytes_sent),
    )


def _with_range(figure: Figure, form: str) -> str:
    value, low, high = figure
    if high >= 100:
        form = ".1f" if high < 1000 else ".0f"
    return f"{value:{form}} ({low:{form}} to {high:{form}})"


def _below(rows: Sequence[ContestRow]) -> list[str]:
    lines = [
        _spread("memory of a rank", rows, lambda row: row.peak_memory_bytes, units.format_size),
        _spread("processors in use", rows, lambda row: row.cpu_share, lambda share: f"{share:.0%}"),
        *_flags(rows),
    ]
    return [line for line in lines if line]


def _spread(
    what: str, rows: Sequence[ContestRow], figure: Callable[[ContestRow], float | None], words: Callable[[float], str]
) -> str:
    known = [(value, row.name) for row in rows if (value := figure(row)) is not None]
    if not known:
        return ""
    (least, where), (most, other) = min(known), max(known)
    if words(least) == words(most):
        return f"{what}: {words(most)}"
    return f"{what}: {words(least)} ({where}) to {words(most)} ({other})"


def _flags(rows: Sequence[ContestRow]) -> list[str]:
    """Return which contestants have each flag, in the order in which flags appear."""
    flags = dict.fromkeys(flag for row in rows for flag in row.flags)
    found = {flag: [row.name for row in rows if flag in row.flags] for flag in flags}
    return [f"{flag}: {'all' if len(names) == len(rows) > 1 else ', '.join(names)}" for flag, names in found.items()]
