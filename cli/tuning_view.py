"""The progress of tuning: on a terminal, a table of the trials that is drawn anew with every report; elsewhere lines.

No thread draws it: that would take processor time from the ranks whose steps are measured.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Self, TextIO

from autosync import units
from autosync.cli.progress import Reporter
from autosync.errors import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table

    from autosync.search.progress import FinishedTrial, SearchStatus

NUM_SHOWN = 8
"""The latest trials that the table shows, besides the best."""
NUM_LEVELS = 40
"""The most trials that the line of the best times shows."""

_LEVELS = "▁▂▃▄▅▆▇█"
_PLAIN_LEVELS = "_.-=+*#@"


class TuningView:
    """Reports the progress of tuning; see `autosync.search.progress`.

    The table begins with the first trial. It stays on the terminal when the view is closed.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._lines = Reporter(self._stream)
        self._status: SearchStatus | None = None
        self._now = ""
        self._live: Live | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the table as it is; further reports are lines."""
        self._is_closed = True
        self._now = ""
        if self._live is not None:
            self._draw()
            self._live.stop()
            self._live = None
        self._lines.clear()

    def note(self, text: str) -> None:
        if self._live is None:
            self._lines.note(text)
            return
        from rich.text import Text

        self._live.console.print(Text(printable(text)))

    def now(self, text: str) -> None:
        if self._live is None:
            self._lines.now(text)
            return
        self._now = text
        self._draw()

    def tried(self, status: SearchStatus, number: int) -> None:
        if self._is_closed or not self._lines.redraws:
            self._lines.tried(status, number)
            return
        self._status, self._now = status, ""
        if self._live is None:
            self._live = self._begun()
        self._draw()

    def _begun(self) -> Live:
        from rich.console import Console
        from rich.live import Live

        self._lines.clear()
        live = Live(console=Console(file=self._stream), auto_refresh=False, redirect_stdout=False)
        live.start()
        return live

    def _draw(self) -> None:
        assert self._live is not None, "drawn while it is live"
        assert self._status is not None, "live since the first trial"
        self._live.update(_drawn(self._status, self._now, self._live.console), refresh=True)


def _drawn(status: SearchStatus, now: str, console: Console) -> RenderableType:
    """Return the table, the line of the best times, and what is being done."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [_table(status.tried)]
    if best := _best_so_far(status.tried)[-NUM_LEVELS:]:
        drawn = sparkline(best, levels=_LEVELS if console.encoding.startswith("utf") else _PLAIN_LEVELS)
        parts.append(_line(f"best so far: {drawn} {best[-1] * 1e3:.2f} ms a step"))
    if now:
        seconds = status.seconds_left()
        left = "" if seconds is None else f" (about {units.format_time(max(round(seconds), 1))} left)"
        parts.append(_line(f"{now}{left if 'left' not in now else ''}"))
    return Group(*parts, Text(""))


def _line(text: str) -> RenderableType:
    from rich.text import Text

    return Text(printable(text), no_wrap=True, overflow="ellipsis")


def _table(tried: Sequence[FinishedTrial]) -> Table:
    """Return the table of the latest trials and the best one, which is marked."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for header, justify in (("trial", "right"), ("strategy", "left"), ("ms a step", "right"), ("", "left")):
        table.add_column(header, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    best = _best(tried)
    latest = range(max(len(tried) - NUM_SHOWN, 0), len(tried))
    for position in sorted({*latest, *([] if best is None else [best])}):
        one, is_best = tried[position], position == best
        seconds = "" if one.measurement is None else f"{one.measurement.median_seconds * 1e3:.2f}"
        cells = (str(position + 1), one.candidate.name, seconds, "best" if is_best else _remark(one))
        table.add_row(*(Text(printable(cell)) for cell in cells), style="bold" if is_best else "")
    return table


def _best(tried: Sequence[FinishedTrial]) -> int | None:
    measured = [(one.measurement.median_seconds, position) for position, one in enumerate(tried) if one.measurement]
    return min(measured)[1] if measured else None


def _best_so_far(tried: Sequence[FinishedTrial]) -> list[float]:
    return list(accumulate((one.measurement.median_seconds for one in tried if one.measurement), min))


def _remark(one: FinishedTrial) -> str:
    failure = one.record.failure
    if failure is not None:
        return f"{failure.kind}: {failure.message}"
    assert one.measurement is not None, "a record has a measurement or a failure"
    return ", ".join(flag.replace("_", " ") for flag in one.measurement.flags)


def sparkline(values: Sequence[float], *, levels: str = _LEVELS) -> str:
    """Return a character for each value, as high as the value between the least and the greatest."""
    least, greatest = min(values), max(values)
    steps = (len(levels) - 1) / (greatest - least) if greatest > least else 0.0
    return "".join(levels[round((value - least) * steps)] for value in values)
