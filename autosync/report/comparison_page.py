"""The page that `autosync compare` writes: which contestant is faster, by how much, and where the time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autosync.datasets.schema import Measurement, seconds_of_steps
from autosync.pictures.cluster_picture import ClusterLoad
from autosync.report import charts
from autosync.report.charts import Charts
from autosync.report.cluster_section import cluster_section, link_loads
from autosync.report.document import article, document
from autosync.report.markup import Markup, element, items, joined
from autosync.report.repeat import repeat_facts
from autosync.report.step_times import step_times
from autosync.report.tables import Row, TableCell, figure, table
from autosync.search.headroom import time_shares
from autosync.search.shown_summary import ShownTime
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.specs.profile.quality import profile_warning
from autosync.strategy.bundle import Bundle
from autosync.strategy.describe import in_words
from autosync.strategy.representation import Strategy
from autosync.trials.comparison import Comparison, Ratio
from autosync.trials.contestant import Contestant
from autosync.units import format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonReport:
    """A comparison with all that its page shows. `command` repeats it; `strategies` are None for stock DDP."""

    comparison: Comparison
    model: ModelSpec
    cluster: ClusterSpec
    strategies: Mapping[str, Strategy | None]
    command: str


def strategies_of(contestants: Sequence[Contestant]) -> dict[str, Strategy | None]:
    """Return the strategy of each contestant, by name."""
    return {one.name: one.bundle.strategy if isinstance(one.bundle, Bundle) else None for one in contestants}


def comparison_page(report: ComparisonReport) -> str:
    """Return the page."""
    drawn, comparison = Charts(), report.comparison
    steps = {name: seconds_of_steps(one.step_seconds) for name, one in _best_ahead(report)}
    caption = "Measured steps, for which the contestants took turns. The fastest and slowest count at the ends."
    caption += charts.left_out(len(steps) - charts.MAX_DISTRIBUTIONS, "contestant")
    sections = {
        "The steps": joined(
            drawn.place(charts.distributions(steps), caption),
            _contestants(report),
        ),
        "Where the time goes": step_times(
            {name: _shown_time(report, name, one) for name, one in comparison.measurements.items()}, drawn
        ),
        "What each does": _words(report),
        "How to repeat it": repeat_facts([report.command], report.cluster, {}),
        "The cluster": cluster_section(report.cluster, _loads(report)),
    }
    title = f"{report.model.name} on {report.cluster.name}"
    content = article(title, f"Comparison: {comparison.rounds_in_words}", _verdict(report), sections, name="comparison")
    return document(title, content, drawn)


def _best_ahead(report: ComparisonReport) -> list[tuple[str, Measurement]]:
    """Return the measurements, those of the first contestant and of the best one first, so that pictures show both."""
    comparison = report.comparison
    ahead = {next(iter(comparison.measurements)), comparison.best}
    return sorted(comparison.measurements.items(), key=lambda one: one[0] not in ahead)


def _verdict(report: ComparisonReport) -> Markup:
    comparison, names = report.comparison, list(report.comparison.measurements)
    first = names[0]
    others = [one for one in comparison.ratios if one.name == comparison.best]
    if comparison.best == first:
        words = f"{first} is the fastest: faster than each of the others."
    elif others and len(names) == 2:
        words = f"{others[0]}."
    elif others:
        words = f"{others[0]}, and faster than each of the others."
    elif len(names) == 2:
        words = f"{comparison.ratios[0]}."
    else:
        words = "None is faster than each of the others."
    doubts = [f"{name} was left out: {one.kind}: {one.message}" for name, one in comparison.failures.items()]
    warning = profile_warning(report.model)
    return joined(
        element("p", words, class_="verdict faster" if comparison.best is not None else "verdict"),
        items([f"{ratio}." for ratio in comparison.ratios] if len(names) > 2 else []),
        items([*doubts, *([f"{warning}."] if warning else [])]),
    )


def _contestants(report: ComparisonReport) -> Markup:
    ratios = {ratio.name: ratio for ratio in report.comparison.ratios}
    rows = [_row(name, one, ratios.get(name)) for name, one in report.comparison.measurements.items()]
    of_time = ("ms a step", "95 % interval", "speed-up", "95 % range")
    columns = ("contestant", *of_time, "sent by a rank", "memory of a rank", "processors", "doubts")
    numbers = ("ms a step", "speed-up", "sent by a rank", "memory of a rank", "processors")
    first = next(iter(report.comparison.measurements))
    return table(f"Contestants. The speed-up is over {first}.", columns, rows, numbers=numbers)


def _row(name: str, one: Measurement, ratio: Ratio | None) -> Row:
    sent, memory = None if one.bytes_sent is None else max(one.bytes_sent), max(one.peak_memory_bytes)
    speedup = None if ratio is None else ratio.speedup
    return (
        name,
        figure(one.median_seconds, f"{one.median_seconds * 1e3:.2f}"),
        f"{one.low_seconds * 1e3:.2f} to {one.high_seconds * 1e3:.2f}",
        TableCell(shown="") if speedup is None else figure(speedup.value, f"{speedup.value:.3f}"),
        "" if speedup is None else f"{speedup.low:.3f} to {speedup.high:.3f}",
        figure(sent, format_size(sent or 0)),
        figure(memory, format_size(memory)),
        figure(one.cpu_share, f"{one.cpu_share or 0:.0%}"),
        ", ".join(one.flags),
    )


def _shown_time(report: ComparisonReport, name: str, measured: Measurement) -> ShownTime:
    shares = time_shares(measured, report.model, report.cluster, report.strategies[name])
    fullest, share = shares.busiest[0] if shares.busiest else (None, None)
    return ShownTime(
        compute_seconds=shares.compute,
        exposed_communication_seconds=shares.exposed,
        input_seconds=shares.input,
        idle_seconds=shares.idle,
        fullest=fullest,
        fullest_share=share,
    )


def _words(report: ComparisonReport) -> Markup:
    told = {
        name: "stock DDP as it ships" if strategy is None else in_words(strategy, report.model)
        for name, strategy in report.strategies.items()
    }
    return table("Contestants in words.", ("contestant", "what it does"), list(told.items()))


def _loads(report: ComparisonReport) -> list[ClusterLoad]:
    return [
        ClusterLoad(name=name, shares=link_loads(one, report.model, report.cluster, report.strategies[name]))
        for name, one in _best_ahead(report)
    ]
