"""The HTML document around a page's content: style, scripts and data in one file, which contacts nothing.

A policy in its head lets only this style and these scripts take effect, by their hashes. Text from elsewhere is
escaped, so it cannot become markup; the policy would stop it if it did.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files

from autosync.report.charts import Charts
from autosync.report.markup import Content, Markup, element, items, json_in_html

STYLES = ("uPlot.min.css", "page.css")
SCRIPTS = ("uPlot.iife.min.js", "page.js")


def document(title: str, content: Content, charts: Charts) -> str:
    """Return a whole page; `charts` are those that its content has places for."""
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
        element("main", noscript, content),
        data,
        [element("script", Markup(script)) for script in scripts],
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def article(
    title: str, below: str, verdict: Content, sections: Mapping[str, Content], *, name: str, is_first: bool = True
) -> Markup:
    """Return an article: a title, a line below it, a verdict, links to its sections, and these. `name` is its id."""
    links = [element("a", heading, href=f"#{name}-{place}") for place, heading in enumerate(sections)]
    return element(
        "article",
        element("h1", title),
        element("p", below, class_="soft"),
        verdict,
        element("nav", items(links), aria_label=f"Sections of {title}"),
        [
            element("section", element("h2", heading, id=f"{name}-{place}"), content)
            for place, (heading, content) in enumerate(sections.items())
        ],
        id=name,
        class_=None if is_first else "study",
    )


def _asset(name: str) -> str:
    return files("autosync.report").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
