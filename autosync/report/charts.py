"""The charts of the page as data; `assets/page.js` draws them with uPlot. Times are milliseconds."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from autosync.report.markup import Markup, element
from autosync.report.study_report import TrialReport
from autosync.strategy.wording import count

Style = Literal["points", "crosses", "line", "steps", "area", "bars"]
Values = Sequence[float | None]
Floats = npt.NDArray[np.float64]

FEWEST_BINS, MOST_BINS = 12, 40
MAX_DISTRIBUTIONS = 6
"""The most contestants whose steps one chart shows."""
_TOP = 3.0
"""The largest step time within a chart of trials, as a multiple of the median."""
_SHOWN_SHARE = 0.99
"""The share of all steps within the range of the chart of distributions. The others count in its first or last bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The values of one kind, with a colour from 0 on."""

    label: str
    values: Values
    style: Style
    colour: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart: positions in ascending order, and for each position a value of each series.

    `names` name positions. Values above `top` lie outside the chart.
    """

    x_label: str
    y_label: str
    x: Sequence[float]
    series: Sequence[Series]
    names: Sequence[str] = ()
    from_zero: bool = False
    top: float | None = None

    @property
    def num_outside(self) -> int:
        """The number of values outside the chart."""
        top = math.inf if self.top is None else self.top
        return sum(value is not None and value > top for one in self.series for value in one.values)

    def fields(self) -> Mapping[str, object]:
        """Return the chart as `assets/page.js` reads it."""
        return {
            "xLabel": self.x_label,
            "yLabel": self.y_label,
            "x": [_rounded(value) for value in self.x],
            "names": list(self.names),
            "fromZero": self.from_zero,
            "top": _rounded(self.top),
            "series": [
                {
                    "label": one.label,
                    "style": one.style,
                    "colour": one.colour,
                    "values": [_rounded(value) for value in one.values],
                }
                for one in self.series
            ],
        }


class Charts:
    """Collects the charts of a page, and returns an element for each to be drawn in."""

    def __init__(self) -> None:
        self.fields: list[Mapping[str, object]] = []

    def place(self, chart: Chart | None, caption: str) -> Markup:
        """Return a figure in which the page's script will draw the chart; empty if there is no chart."""
        if chart is None:
            return Markup()
        self.fields.append(chart.fields())
        if chart.num_outside:
            caption = f"{caption} {count(chart.num_outside, 'value')} above {chart.top:.4g} ms lie outside the chart."
        drawn = element("div", class_="chart", role="img", aria_label=caption, data_chart=len(self.fields) - 1)
        return element("figure", drawn, element("figcaption", caption))


def left_out(num_more: int, what: str) -> str:
    """Return the end of a caption that tells how many more there are than a chart or picture shows; empty if none."""
    return f" Not shown: {count(num_more, f'more {what}')}." if num_more > 0 else ""


def best_so_far(trials: Sequence[TrialReport]) -> list[float | None]:
    """Return the fastest measured step up to each trial, in their order."""
    seconds = (math.inf if one.seconds is None else one.seconds for one in trials)
    return [None if value == math.inf else value for value in itertools.accumulate(seconds, min)]


def over_trials(trials: Sequence[TrialReport]) -> Chart | None:
    """Return the measured and predicted step times over the trials, and the best so far."""
    return _search(trials, [float(one.record.trial) for one in trials], "trial")


def over_time(trials: Sequence[TrialReport]) -> Chart | None:
    """Return the same over the minutes since the first trial; None if the trials took no time, as in a replay."""
    ordered = sorted(trials, key=lambda one: (one.elapsed_seconds, one.record.trial))
    if not ordered or ordered[-1].elapsed_seconds < 1:
        return None
    return _search(ordered, [one.elapsed_seconds / 60 for one in ordered], "minutes")


def _search(trials: Sequence[TrialReport], x: Sequence[float], x_label: str) -> Chart | None:
    measured = [one.seconds * 1e3 for one in trials if one.seconds is not None]
    if len(measured) < 2:
        return None
    series = [
        Series(label="predicted", values=_milliseconds([one.predicted for one in trials]), style="crosses", colour=3),
        Series(label="measured", values=_milliseconds([one.seconds for one in trials]), style="points", colour=0),
        Series(label="best so far", values=_milliseconds(best_so_far(trials)), style="steps", colour=1),
    ]
    told = [one for one in series if any(value is not None for value in one.values)]
    return Chart(x_label=x_label, y_label="ms a step", x=x, series=told, top=_TOP * statistics.median(measured))


def predictions(trials: Sequence[TrialReport]) -> Chart | None:
    """Return the predicted step times over the measured ones, with a line where both are equal."""
    both = sorted(
        (one.seconds * 1e3, one.predicted * 1e3)
        for one in trials
        if one.seconds is not None and one.predicted is not None
    )
    if len(both) < 2:
        return None
    measured = [pair[0] for pair in both]
    series = (
        Series(label="equal", values=measured, style="line", colour=2),
        Series(label="predicted", values=[pair[1] for pair in both], style="crosses", colour=3),
    )
    top = _TOP * statistics.median(measured)
    return Chart(x_label="measured ms a step", y_label="predicted ms a step", x=measured, series=series, top=top)


def prediction_error(trials: Sequence[TrialReport]) -> float | None:
    """Return the median relative error of the predictions; None without any."""
    errors = [abs(one.predicted / one.seconds - 1) for one in trials if one.seconds and one.predicted is not None]
    return statistics.median(errors) if errors else None


def distributions(steps_of: Mapping[str, Sequence[float]]) -> Chart | None:
    """Return how the measured steps of some contestants are distributed: a share of the steps for each bar."""
    shown = [(name, np.array(steps) * 1e3) for name, steps in steps_of.items() if len(steps)][:MAX_DISTRIBUTIONS]
    if not shown:
        return None
    everything = np.concatenate([steps for _, steps in shown])
    low, high = np.quantile(everything, [(1 - _SHOWN_SHARE) / 2, (1 + _SHOWN_SHARE) / 2])
    num_bins = min(max(FEWEST_BINS, round(2 * math.sqrt(len(shown[0][1])))), MOST_BINS)
    margin = max((high - low) / num_bins, high * 1e-3)
    edges = np.linspace(low - margin, high + margin, num_bins + 1)
    series = [
        Series(label=name, values=[*_shares(steps, edges), 0.0], style="area", colour=place)
        for place, (name, steps) in enumerate(shown)
    ]
    return Chart(x_label="ms a step", y_label="% of the steps", x=edges.tolist(), series=series, from_zero=True)


def _shares(steps: Floats, edges: Floats) -> list[float]:
    within = np.clip(steps, edges[0], edges[-1])
    counts, _ = np.histogram(within, edges)
    return [float(count) / len(steps) * 100 for count in counts]


def stacked(names: Sequence[str], parts: Mapping[str, Values]) -> Chart | None:
    """Return bars of seconds, one for each name, in which the parts lie on top of each other."""
    if not names:
        return None
    sums, series = [0.0] * len(names), []
    for colour, (label, seconds) in enumerate(parts.items()):
        sums = [total + (value or 0.0) for total, value in zip(sums, seconds, strict=True)]
        series.append(Series(label=label, values=_milliseconds(sums), style="bars", colour=colour))
    # The longest bars are drawn first, so that the shorter ones lie before them.
    x = [float(place) for place in range(len(names))]
    return Chart(x_label="", y_label="ms a step", x=x, series=series[::-1], names=names, from_zero=True)


def _milliseconds(seconds: Values) -> list[float | None]:
    return [None if value is None else value * 1e3 for value in seconds]


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
