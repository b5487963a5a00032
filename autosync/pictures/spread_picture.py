"""The picture of the spread of step times: a row for each model on each cluster, with a stroke for each strategy.

All rows have one scale, relative to their own stock DDP, so that fast and slow combinations can be compared. Strokes
left of the line at 1 beat stock DDP.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autosync.pictures.lettering import clipped
from autosync.pictures.svg import Drawing, Pen

_LEFT, _RIGHT, _TOP, _WIDTH = 190.0, 120.0, 92.0, 960.0
_ROW, _STROKE, _HEAD = 16.0, 9.0, 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The step times of one model on one cluster, with the time of stock DDP; without this time the row is left out."""

    model: str
    cluster: str
    seconds: Sequence[float]
    default_seconds: float | None


def spread_picture(spreads: Sequence[Spread], *, title: str) -> str:
    """Return the picture as SVG."""
    shown = [spread for spread in spreads if spread.default_seconds is not None and spread.seconds]
    scale = _Scale([seconds / (spread.default_seconds or 1.0) for spread in shown for seconds in spread.seconds])
    drawing = Drawing()
    num_times = sum(len(spread.seconds) for spread in shown)
    drawing.text(20, 32, title, "head ink")
    drawing.text(20, 52, f"{num_times:,} step times; each stroke is a strategy, relative to stock DDP", "soft")
    drawing.text(_WIDTH - 20, 52, "the fastest: how many times as fast", "soft", anchor="end")
    bottom = _rows(drawing, shown, scale)
    for ratio in scale.ticks():
        x = scale.x(ratio)
        drawing.underlay((x, _TOP - 8), (x, bottom), "dashed" if ratio == 1 else "thin")
        drawing.text(x, _TOP - 14, f"{ratio:g}×", "small soft", anchor="middle")
    left_out = len(spreads) - len(shown)
    if left_out:
        drawing.text(20, bottom + 18, f"{left_out} without a measured default left out", "small soft")
    best = max((_gain(spread) for spread in shown), default=1.0)
    description = f"{len(shown)} combinations of model and cluster; the largest gain over stock DDP is {best:.2f}."
    return drawing.svg(_WIDTH, bottom + 30, title=title, description=description)


def _rows(drawing: Drawing, spreads: Sequence[Spread], scale: _Scale) -> float:
    """Draw all rows under the names of their models; return where they end."""
    y, model = _TOP, ""
    for spread in spreads:
        if spread.model != model:
            model = spread.model
            y += _HEAD
            drawing.text(20, y - 4, clipped(model, _LEFT), "bold ink")
        _row(drawing, spread, scale, y)
        y += _ROW
    return y + 8


def _row(drawing: Drawing, spread: Spread, scale: _Scale, y: float) -> None:
    default = spread.default_seconds
    assert default is not None, "only rows with a default are drawn"
    middle = y + _ROW / 2
    drawing.text(32, middle + 4, clipped(spread.cluster, _LEFT - 32, 11), "small ink")
    pen = Pen()
    for seconds in sorted(spread.seconds):
        x = scale.x(seconds / default)
        pen.move(x, middle - _STROKE / 2).line(x, middle + _STROKE / 2)
    drawing.path(pen, "line-0", width=1.0)
    best = scale.x(min(spread.seconds) / default)
    marked = Pen().move(best, middle - _STROKE / 2 - 1).line(best, middle + _STROKE / 2 + 1)
    drawing.path(marked, "line-1", width=2.6)
    drawing.text(_WIDTH - 20, middle + 4, f"{_gain(spread):.2f}", "small ink", anchor="end")
    fastest = f"{min(spread.seconds) * 1e3:.0f} ms"
    drawing.text(_WIDTH - 60, middle + 4, fastest, "small soft", anchor="end")


def _gain(spread: Spread) -> float:
    return (spread.default_seconds or 0.0) / min(spread.seconds)


class _Scale:
    """A logarithmic axis of ratios."""

    def __init__(self, ratios: Sequence[float]) -> None:
        self._low = math.log2(min([*ratios, 0.9])) - 0.1
        self._high = math.log2(max([*ratios, 1.1])) + 0.1

    def x(self, ratio: float) -> float:
        share = (math.log2(ratio) - self._low) / (self._high - self._low)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def ticks(self) -> Iterator[float]:
        """Yield the powers of two on the axis."""
        yield from (2.0**power for power in range(math.ceil(self._low), math.floor(self._high) + 1))
