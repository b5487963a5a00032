"""The page: one HTML document with its style, its scripts and its data. It opens no connection.

The content security policy in its head allows only this style and these scripts, by their hashes. Text from studies is
escaped, so it cannot become markup; even if it did, the policy would stop it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from autosync import jsonio
from autosync.datasets.schema import Record
from autosync.report.charts import Charts
from autosync.report.cluster_section import cluster_section
from autosync.report.markup import Markup, element, items, json_in_html
from autosync.report.pictures_section import pictures_section
from autosync.report.sections import families_section, proof_section, time_section, trials_section
from autosync.report.strategy_section import strategy_section
from autosync.report.study_report import StudyReport, read_study_report
from autosync.report.use_sections import repeat_section, use_section
from autosync.report.verdict import verdict_section, verdict_sentence
from autosync.search.study_folder import StudyFolder

STYLES = ("uPlot.min.css", "page.css")
SCRIPTS = ("uPlot.iife.min.js", "page.js")


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
    style, scripts = "".join(map(_asset, STYLES)), [_asset(name) for name in SCRIPTS]
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{title}: autosync"),
        element("style", Markup(style)),
    )
    noscript = element(
        "noscript", element("p", "Without JavaScript the charts are missing; the tables have their figures.")
    )
    data = element("script", json_in_html(charts.fields), type="application/json", id="charts")
    body = element(
        "body",
        element("main", heading, noscript, articles),
        data,
        [element("script", Markup(script)) for script in scripts],
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


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
    sections = {
        "The trials": trials_section(report, charts),
        "The proof": proof_section(report, charts),
        "Where the time goes": time_section(report, charts),
        "The strategy, layer by layer": strategy_section(report),
        "What was tried": families_section(report),
        "How to use it": use_section(report),
        "How to repeat it": repeat_section(report),
        "Pictures": pictures_section(report),
        "The cluster": cluster_section(report),
    }
    links = [element("a", title, href=f"#study-{number}-{place}") for place, title in enumerate(sections)]
    return element(
        "article",
        element("h1", f"{summary.model} on {summary.cluster}"),
        element("p", f"Study {summary.study}", class_="soft"),
        verdict_section(report),
        element("nav", items(links), aria_label=f"Sections of {summary.study}"),
        [
            element("section", element("h2", title, id=f"study-{number}-{place}"), content)
            for place, (title, content) in enumerate(sections.items())
        ],
        id=f"study-{number}",
        class_="study" if number else None,
    )


def _asset(name: str) -> str:
    return files("autosync.report").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
