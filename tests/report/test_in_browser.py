"""The page in a real Chromium: it draws, sorts by keyboard, follows the colour scheme, and opens no connection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autosync.report.comparison_page import ComparisonReport, comparison_page
from autosync.report.diagnosis_page import DiagnosisReport, diagnosis_page
from autosync.report.page import report_page
from autosync.report.study_report import StudyReport
from tests.helpers.browser import Page, chromium, find_chromium

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium is installed (AUTOSYNC_CHROMIUM names one)"),
]

_INK = "getComputedStyle(document.body).color"
# How many charts have something drawn on them.
_DRAWN = """[...document.querySelectorAll('.chart canvas')].filter((canvas) => {
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  return pixels.some((value) => value > 0);
}).length"""
_COLUMN = "[...document.querySelector('.wide table').tBodies[0].rows].map((row) => row.cells[2].textContent)"
_BUTTON = "document.querySelectorAll('.wide table thead th')[2]"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Page]:
    program = find_chromium()
    assert program is not None
    with chromium(program, tmp_path / "profile") as page:
        yield page


def _page(report: StudyReport | ComparisonReport | DiagnosisReport) -> str:
    match report:
        case ComparisonReport():
            return comparison_page(report)
        case DiagnosisReport():
            return diagnosis_page(report)
        case _:
            return report_page([report])


def _write(report: StudyReport | ComparisonReport | DiagnosisReport, folder: Path) -> Path:
    path = folder / "report.html"
    path.write_text(_page(report), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("which", "least_charts"), [("thousand", 3), ("hostile", 3), ("compared", 2), ("diagnosed", 1)]
)
def test_the_page_works_and_contacts_nothing(
    which: str, least_charts: int, browser: Page, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = _write(request.getfixturevalue(which), tmp_path)
    inks = []
    for is_dark in (False, True):
        browser.open(path, dark=is_dark)
        num_charts = browser.evaluate("document.querySelectorAll('[data-chart]').length")
        assert num_charts >= least_charts
        assert browser.evaluate("document.documentElement.dataset.drawn") == str(num_charts)
        assert browser.evaluate(_DRAWN) == num_charts
        assert browser.evaluate("[...document.images].every((one) => one.complete && one.naturalWidth > 0)")
        assert browser.evaluate("typeof window.hit") == "undefined"
        inks.append(browser.evaluate(_INK))
        assert browser.errors == []
        assert browser.requests == [path.resolve().as_uri()]
    assert inks[0] != inks[1]


def test_tables_sort_by_keyboard(browser: Page, report: StudyReport, tmp_path: Path) -> None:
    browser.open(_write(report, tmp_path))
    before = browser.evaluate(_COLUMN)
    browser.evaluate(f"{_BUTTON}.querySelector('button').focus()")
    browser.press("Enter", 13)
    assert browser.evaluate(_COLUMN) == sorted(before, key=float)
    assert browser.evaluate(f"{_BUTTON}.getAttribute('aria-sort')") == "ascending"
    browser.press("Enter", 13)
    assert browser.evaluate(_COLUMN) == sorted(before, key=float, reverse=True)
    assert browser.evaluate(f"{_BUTTON}.getAttribute('aria-sort')") == "descending"


def test_pictures_grow_and_shrink(browser: Page, report: StudyReport, tmp_path: Path) -> None:
    browser.open(_write(report, tmp_path))
    width = "document.querySelector('.picture img').clientWidth"
    before = browser.evaluate(width)
    browser.evaluate("document.querySelector('.zoom[data-zoom=\"2\"]').click()")
    browser.evaluate("document.querySelector('.zoom[data-zoom=\"2\"]').click()")
    assert browser.evaluate(width) > 3 * before
    assert browser.evaluate("document.querySelector('.picture').scrollLeft") > 0
    for _ in range(3):
        browser.evaluate("document.querySelector('.zoom[data-zoom=\"0.5\"]').click()")
    assert browser.evaluate(width) <= browser.evaluate("document.querySelector('.picture').clientWidth")
    assert browser.errors == []
