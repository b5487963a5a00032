"""The sections of a study's report, below its verdict."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from autosync.report import charts
from autosync.report.charts import Charts
from autosync.report.markup import Markup, element, items, joined
from autosync.report.step_times import step_times
from autosync.report.study_report import StudyReport, TrialReport
from autosync.report.tables import Row, TableCell, figure, table
from autosync.strategy.wording import count
from autosync.units import format_size


def trials_section(report: StudyReport, drawn: Charts) -> Markup:
    """Return the section about the trials: charts of the best so far and of predictions, and a table of all trials."""
    if not report.trials:
        return element("p", "The study's trials are not in its folder.", class_="soft")
    predicted = "Predictions are the timeline simulator's, from the specs alone: it knows none of these measurements."
    error = charts.prediction_error(report.trials)
    against = "Predicted step times over the measured ones; on the line both are equal."
    if error is not None:
        against += f" The median error is {error:.0%}."
    over = "Step time of each trial and the best so far, over"
    return joined(
        drawn.place(charts.over_trials(report.trials), f"{over} the trials. {predicted}"),
        drawn.place(charts.over_time(report.trials), f"{over} the time since the first trial began."),
        drawn.place(charts.predictions(report.trials), against),
        table(
            "All trials.",
            ("trial", "strategy", "ms a step", "95 % interval", "predicted", "off by", "of", "result"),
            [_trial_row(one) for one in report.trials],
            numbers=("trial", "ms a step", "predicted", "off by"),
        ),
    )


def _trial_row(trial: TrialReport) -> Row:
    measured, failure = trial.record.measurement, trial.record.failure
    seconds, predicted = trial.seconds, trial.predicted
    off = None if seconds is None or predicted is None else predicted / seconds - 1
    interval = "" if measured is None else f"{measured.low_seconds * 1e3:.2f} to {measured.high_seconds * 1e3:.2f}"
    result = ", ".join(measured.flags) if measured is not None else ""
    return (
        TableCell(shown=str(trial.record.trial), number=trial.record.trial),
        trial.name,
        figure(seconds, f"{(seconds or 0) * 1e3:.2f}"),
        interval,
        figure(predicted, f"{(predicted or 0) * 1e3:.2f}"),
        figure(off, f"{off or 0:+.0%}"),
        trial.family,
        result if failure is None else f"{failure.kind}: {failure.message}"[:400],
    )


def proof_section(report: StudyReport, drawn: Charts) -> Markup:
    """Return the section about the final comparison: the steps of the contestants as distributions and in figures."""
    summary = report.summary
    rows = [
        (
            one.name,
            one.role or "",
            figure(one.seconds.value, f"{one.seconds.value * 1e3:.2f}"),
            f"{one.seconds.low * 1e3:.2f} to {one.seconds.high * 1e3:.2f}",
            figure(ratio.value, f"{ratio.value:.3f}") if (ratio := one.speedup_over_stock_ddp) else TableCell(shown=""),
            f"{ratio.low:.3f} to {ratio.high:.3f}" if ratio else "",
            figure(one.bytes_sent, format_size(one.bytes_sent or 0)),
            figure(one.peak_memory_bytes, format_size(one.peak_memory_bytes or 0)),
            figure(one.cpu_share, f"{one.cpu_share or 0:.0%}"),
            ", ".join(one.flags),
        )
        for one in summary.contests
    ]
    of_time = ("ms a step", "95 % interval", "speed-up", "95 % range")
    columns = ("contestant", "role", *of_time, "sent by a rank", "memory of a rank", "processors", "doubts")
    numbers = ("ms a step", "speed-up", "sent by a rank", "memory of a rank", "processors")
    caption = "Measured steps of the proof, in which all took turns. The fastest and slowest count at the ends."
    steps = _steps(report)
    caption += charts.left_out(sum(map(bool, steps.values())) - charts.MAX_DISTRIBUTIONS, "contestant")
    return joined(
        drawn.place(charts.distributions(steps), caption),
        table("Contestants of the proof. The speed-up is over stock DDP.", columns, rows, numbers=numbers),
        items([f"{ratio.in_words}." for ratio in summary.winner.against]),
    )


def _steps(report: StudyReport) -> dict[str, tuple[float, ...]]:
    """Return the measured steps of each contestant, stock DDP's and the winner's first."""
    first = dict.fromkeys([report.default.name, report.winner.name])
    contests = sorted(report.summary.contests, key=lambda one: one.name not in first)
    return {one.name: one.step_seconds for one in contests}


def time_section(report: StudyReport, drawn: Charts) -> Markup:
    """Return the section about the parts of a step, for stock DDP and for the other contestants."""
    return step_times({one.name: one.time for one in report.summary.contests}, drawn)


def families_section(report: StudyReport) -> Markup:
    """Return the section about the tried strategies, grouped by their synchronisers."""
    families: dict[str, list[TrialReport]] = {}
    for one in report.trials:
        families.setdefault(one.family, []).append(one)
    summary = report.summary
    tried = ", ".join(f"{number} {origin}" for origin, number in summary.tried.items())
    words = f"{count(summary.num_trials, 'trial')} of the search, by origin: {tried}."
    if summary.num_failed_trials:
        words += f" {summary.num_failed_trials} of them failed."
    if summary.num_outages:
        words += f" {count(summary.num_outages, 'more trial')} ended by no fault of a strategy, and began again."
    if summary.ended:
        words += f" The search ended because {summary.ended}."
    columns = ("family", "trials", "failed", "fastest, ms a step", "median, ms a step")
    rows = [_family_row(name, trials) for name, trials in families.items()]
    shown = table("Trials by family: the synchronisers and codecs of a strategy.", columns, rows, numbers=columns[1:])
    return joined(element("p", words), shown if rows else None)


def _family_row(name: str, trials: Sequence[TrialReport]) -> Row:
    measured = [one.seconds * 1e3 for one in trials if one.seconds is not None]
    failed = len(trials) - len(measured)
    return (
        name,
        TableCell(shown=str(len(trials)), number=len(trials)),
        TableCell(shown=str(failed), number=failed),
        figure(min(measured, default=None), f"{min(measured, default=0):.2f}"),
        figure(
            statistics.median(measured) if measured else None, f"{statistics.median(measured) if measured else 0:.2f}"
        ),
    )
