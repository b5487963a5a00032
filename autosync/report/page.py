"""The page about studies: a verdict, trials, proof and strategy for each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autosync import jsonio
from autosync.datasets.schema import Record
from autosync.report.charts import Charts
from autosync.report.cluster_section import study_cluster_section
from autosync.report.document import article, document
from autosync.report.markup import Markup, element, items
from autosync.report.pictures_section import pictures_section
from autosync.report.sections import families_section, proof_section, time_section, trials_section
from autosync.report.strategy_section import strategy_section
from autosync.report.study_report import StudyReport, read_study_report
from autosync.report.use_sections import repeat_section, use_section
from autosync.report.verdict import verdict_section, verdict_sentence
from autosync.search.study_folder import StudyFolder


def write_report(folder: StudyFolder, records: Sequence[Record] | None = None) -> Path:
    """Write the report of a finished study into its folder; return its path. See `read_study_report`."""
    jsonio.write_text(folder.report, report_page([read_study_report(folder, records)]))
    return folder.report


def report_page(reports: Sequence[StudyReport]) -> str:
    """Return the page about one study or several."""
    charts = Charts()
    articles = [_study(report, number, charts) for number, report in enumerate(reports)]
    first = reports[0].summary
    title = f"{first.model} on {first.cluster}" if len(reports) == 1 else f"{len(reports)} studies"
    heading = [element("h1", title), _contents(reports)] if len(reports) > 1 else []
    return document(title, [heading, articles], charts)


def _contents(reports: Sequence[StudyReport]) -> Markup:
    """Return a list of several studies, each with its verdict."""
    return items(
        [
            [element("a", report.summary.study, href=f"#study-{number}"), ": ", verdict_sentence(report)]
            for number, report in enumerate(reports)
        ]
    )


def _study(report: StudyReport, number: int, charts: Charts) -> Markup:
    summary = report.summary
    return article(
        f"{summary.model} on {summary.cluster}",
        f"Study {summary.study}",
        verdict_section(report),
        {
            "The trials": trials_section(report, charts),
            "The proof": proof_section(report, charts),
            "Where the time goes": time_section(report, charts),
            "The strategy, layer by layer": strategy_section(report),
            "What was tried": families_section(report),
            "How to use it": use_section(report),
            "How to repeat it": repeat_section(report),
            "Pictures": pictures_section(report),
            "The cluster": study_cluster_section(report),
        },
        name=f"study-{number}",
        is_first=number == 0,
    )
