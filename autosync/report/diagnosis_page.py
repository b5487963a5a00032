"""The page that `autosync doctor` writes: why a step takes as long as it does, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autosync.doctor.causes import CAUSES, COMPUTE
from autosync.doctor.diagnosis import Diagnosis, RankedCause
from autosync.doctor.wording import Operands, gain_in_words
from autosync.report import charts
from autosync.report.charts import Charts
from autosync.report.cluster_section import cluster_section
from autosync.report.document import article, document
from autosync.report.markup import Markup, element, items, joined
from autosync.report.repeat import repeat_facts
from autosync.report.tables import Row, figure, table
from autosync.specs.cluster import ClusterSpec
from autosync.strategy.wording import count
from autosync.units import format_time

MAX_BARS = 6
"""The number of causes that the chart shows: those that cost most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisReport:
    """A diagnosis with all that its page shows."""

    diagnosis: Diagnosis
    operands: Operands
    cluster: ClusterSpec

    @property
    def title(self) -> str:
        what = self.operands.model or " ".join(self.operands.script)
        return f"{what} on {self.cluster.name}"


def diagnosis_page(report: DiagnosisReport) -> str:
    """Return the page."""
    drawn, diagnosis = Charts(), report.diagnosis
    sections = {
        "What it costs": _costs(diagnosis, drawn),
        "What to do": _advice(report),
        "How to repeat it": repeat_facts([report.operands.again], report.cluster, {}),
        "The cluster": cluster_section(report.cluster),
    }
    below = f"Diagnosis of stock DDP, from {count(diagnosis.num_steps, 'step')}"
    content = article(report.title, below, _verdict(report), sections, name="diagnosis")
    return document(report.title, content, drawn)


def _verdict(report: DiagnosisReport) -> Markup:
    diagnosis, primary = report.diagnosis, report.diagnosis.primary
    subject = f" ({primary.finding.subject})" if primary.finding.subject else ""
    words = f"{primary.cause.title}{subject}: {primary.share:.0%} of the step"
    figures = [("time of a step", format_time(diagnosis.step_seconds)), (primary.cause.title, f"{primary.share:.0%}")]
    gain = diagnosis.gain
    if gain is not None and gain.is_known:
        figures.append(("at most possible", f"{gain.most:.2f} × as fast"))
    boxes = [element("div", element("dt", name), element("dd", value)) for name, value in figures]
    return joined(
        element("p", words, class_="verdict faster" if primary.name == COMPUTE else "verdict"),
        element("p", f"{primary.finding.told[:1].upper()}{primary.finding.told[1:]}."),
        element("dl", boxes, class_="figures"),
        element("p", gain_in_words(diagnosis), class_="soft"),
    )


def _costs(diagnosis: Diagnosis, drawn: Charts) -> Markup:
    ranked = [diagnosis.primary, *diagnosis.others]
    costly = [one for one in ranked if one.finding.seconds > 0]
    shown = costly[:MAX_BARS]
    caption = "What each cause costs in a step. A cause may be the reason for another, so they overlap."
    caption += charts.left_out(len(costly) - MAX_BARS, "cause")
    chart = charts.stacked(
        [one.cause.title for one in shown], {"costs": [one.finding.seconds for one in shown]} if shown else {}
    )
    unknown = [f"{CAUSES[name].title}: {reason}" for name, reason in diagnosis.unknown.items()]
    return joined(
        drawn.place(chart, caption),
        table("Causes.", ("cause", "of the step", "time", "where", "evidence"), list(_rows(ranked)), numbers=_NUMBERS),
        element("h3", "Not known") if unknown else None,
        items(unknown),
    )


_NUMBERS = ("of the step", "time")


def _rows(ranked: list[RankedCause]) -> Iterator[Row]:
    for one in ranked:
        seconds = one.finding.seconds
        yield (
            one.cause.title,
            figure(one.share, f"{one.share:.1%}"),
            figure(seconds, format_time(seconds)),
            one.finding.subject,
            one.finding.told,
        )


def _advice(report: DiagnosisReport) -> Markup:
    cause, operands = report.diagnosis.primary.cause, report.operands
    return joined(
        element("p", f"{cause.advice[:1].upper()}{cause.advice[1:]}."),
        element("pre", element("code", operands.fill(cause.command))),
        element("p", "model.py is a task with the same model.", class_="soft")
        if operands.needs_task(cause.command)
        else None,
    )
