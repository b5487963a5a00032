"""Where the time of a step goes: its parts as a chart and as a table, for each contestant."""

from __future__ import annotations

from collections.abc import Mapping

from autosync.report import charts
from autosync.report.charts import Chart, Charts
from autosync.report.markup import Markup, joined
from autosync.report.tables import Row, TableCell, figure, table
from autosync.search.shown_summary import ShownTime
from autosync.units import format_time

_PARTS = ("compute", "communication not hidden", "waiting for input", "waiting with nothing busy")


def step_times(times: Mapping[str, ShownTime], drawn: Charts) -> Markup:
    """Return the parts of each contestant's step as a chart and a table."""
    rows: list[Row] = [
        (
            name,
            _time(one.compute_seconds),
            _time(one.exposed_communication_seconds),
            _time(one.input_seconds or None),
            _time(one.idle_seconds),
            *_fullest(one),
        )
        for name, one in times.items()
    ]
    columns = ("contestant", *_PARTS, "fullest", "it is busy")
    return joined(
        drawn.place(
            _chart({name: one for name, one in times.items() if one.compute_seconds is not None}),
            "The parts of a step. Communication that runs beside compute is hidden, and not shown.",
        ),
        table("Where the time of a step goes.", columns, rows, numbers=(*_PARTS, "it is busy")),
    )


def _chart(known: Mapping[str, ShownTime]) -> Chart | None:
    parts = {
        "compute": [one.compute_seconds for one in known.values()],
        "communication that compute does not hide": [one.exposed_communication_seconds for one in known.values()],
        "waiting with nothing busy": [one.idle_seconds for one in known.values()],
    }
    waits = [one.input_seconds for one in known.values()]
    if any(waits):
        parts["waiting for input"] = waits
    return charts.stacked(list(known), parts)


def _fullest(time: ShownTime) -> tuple[str, TableCell]:
    """Return what was fullest and for which share of the step; summaries of earlier versions name links alone."""
    name, share = time.fullest, time.fullest_share
    if name is None:
        name, share = time.busiest_link, time.busiest_link_share
    return name or "", figure(share, f"{share or 0:.0%}")


def _time(seconds: float | None) -> TableCell:
    return figure(seconds, format_time(seconds or 0))
