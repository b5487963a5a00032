"""The page is complete, well formed and small, and hostile names in a study have no effect on it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from autosync.report.charts import best_so_far
from autosync.report.page import SCRIPTS, report_page, write_report
from autosync.report.study_report import StudyReport, TrialReport, read_study_report
from autosync.report.tables import MAX_ROWS, TableCell, figure, table
from autosync.report.use_sections import tune_command
from autosync.report.verdict import verdict_sentence
from autosync.search.study_folder import StudyFolder

_VOID = {"meta", "img", "br"}
_MAX_BYTES = 3_000_000


class Reader(HTMLParser):
    """Reads a page and refuses one whose elements are not nested; `content` has the text of scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.content: dict[str, list[str]] = {"script": [], "style": []}
        self.text = ""
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)
        if tag in self.content:
            self.content[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        if inside in self.content:
            self.content[inside][-1] += data
        else:
            self.text += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read(page: str) -> Reader:
    assert page.startswith("<!DOCTYPE html>\n<html lang=")
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader._open == []
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for attributes in reader.of("a")]
    assert {link for link in links if link} <= {f"#{one}" for one in ids}
    return reader


def _check_deaf(page: str) -> Reader:
    """Only our own scripts and style are in the page, its policy allows them alone, and nothing is loaded."""
    found = read(page)
    assert [one.get("type") for one in found.of("script")] == ["application/json", *[None] * len(SCRIPTS)]
    assert len(found.of("style")) == 1
    handlers = [name for _, attributes in found.tags for name in attributes if name.startswith("on") or name == "style"]
    assert handlers == []
    sources = [value or "" for _, attributes in found.tags for name, value in attributes.items() if name == "src"]
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    (policy,) = (one["content"] for one in found.of("meta") if one.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for kind, texts in (("script-src", found.content["script"][1:]), ("style-src", found.content["style"])):
        hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        assert rules[kind].split() == [f"'sha256-{one}'" for one in hashes]
    return found


def test_a_page_shows_a_study(report: StudyReport) -> None:
    page = report_page([report])
    found = _check_deaf(page)
    assert len(page) < 400_000
    speedup = report.summary.winner.speedup_over_stock_ddp
    assert speedup is not None
    assert f"takes {(1 - 1 / speedup.value) * 100:.0f} % less time per step than stock DDP (95 % sure: " in found.text
    for words in ("samples per second", "steps per second", "fc.weight", "autosync tune ", "torch", "seed", "n1"):
        assert words in found.text
    charts = json.loads(found.content["script"][0])
    labels = [[one["label"] for one in chart["series"]] for chart in charts]
    assert labels[0] == ["predicted", "measured", "best so far"]
    assert {report.default.name, report.winner.name} <= {label for one in labels for label in one}
    assert len(found.of("img")) == 3
    for chart in charts:
        assert chart["x"] == sorted(chart["x"])
        assert all(len(one["values"]) == len(chart["x"]) for one in chart["series"])
    assert len([1 for one in found.tags if one[0] == "caption"]) == len(found.of("table"))
    assert all(one.get("scope") in {"col", "row"} for one in found.of("th"))


def test_a_hostile_study_is_data(hostile: StudyReport) -> None:
    found = _check_deaf(report_page([hostile, hostile]))
    assert found.text.count("<script>window.hit=1</script>") > 20
    assert "window.hit" in found.content["script"][0]
    assert not any("window.hit" in text for text in [*found.content["script"][1:], *found.content["style"]])
    for image in found.of("img"):
        svg = base64.b64decode((image["src"] or "").partition("base64,")[2]).decode()
        assert "<script" not in svg
        assert "<img" not in svg


def test_a_thousand_trials_fit(thousand: StudyReport) -> None:
    page = report_page([thousand])
    found = _check_deaf(page)
    assert len(page.encode()) < _MAX_BYTES
    charts = json.loads(found.content["script"][0])
    assert [chart["xLabel"] for chart in charts[:2]] == ["trial", "minutes"]
    assert len(charts[0]["x"]) == 1000


def test_a_folder_with_only_its_verdict_gives_a_shorter_page(alone: StudyReport) -> None:
    found = _check_deaf(report_page([alone]))
    assert "The study's trials are not in its folder." in found.text
    assert "The winner's bundle is not in the study's folder." in found.text
    assert json.loads(found.content["script"][0]) == []
    assert alone.winner.name in found.text


def test_several_studies_are_on_one_page(report: StudyReport, alone: StudyReport) -> None:
    found = _check_deaf(report_page([report, alone]))
    assert [one["id"] for one in found.of("article")] == ["study-0", "study-1"]
    assert "2 studies" in found.text


def test_where_stock_ddp_stays_the_page_says_so(report: StudyReport, study: StudyFolder, tmp_path: object) -> None:
    fields = json.loads(study.summary.read_text(encoding="utf-8"))
    fields["winner"] |= {"beats_stock_ddp": False, "name": fields["contests"][0]["name"]}
    folder = StudyFolder(study.path.parent / "kept")
    folder.path.mkdir(exist_ok=True)
    folder.summary.write_text(json.dumps(fields), encoding="utf-8")
    kept = read_study_report(folder)
    assert verdict_sentence(kept) == "Nothing tried is faster than stock DDP for certain: keep it."
    found = _check_deaf(report_page([kept]))
    assert "Leave the training script as it is." in found.text


def test_the_report_is_a_file_of_the_study(study: StudyFolder) -> None:
    path = write_report(study)
    assert path == study.path / "report.html"
    assert path.read_text(encoding="utf-8") == report_page([read_study_report(study)])


def test_the_best_so_far_never_rises(report: StudyReport) -> None:
    found = best_so_far(report.trials)
    measured = [one.seconds for one in report.trials if one.seconds is not None]
    assert found[-1] == min(measured)
    assert found[0] == measured[0]
    assert best_so_far([_failed(report.trials[0])]) == [None]


def _failed(trial: TrialReport) -> TrialReport:
    from dataclasses import replace

    from autosync.datasets.schema import Failure

    failed = replace(trial.record, measurement=None, failure=Failure(kind="raised", message="no luck"))
    return replace(trial, record=failed)


def test_every_trial_has_a_prediction(report: StudyReport) -> None:
    assert all(one.predicted is not None and one.predicted > 0 for one in report.trials)


def test_the_command_begins_the_same_study(report: StudyReport) -> None:
    assert report.settings is not None
    words = tune_command(report.settings)
    assert words.startswith("autosync tune ")
    assert " --trials 5 " in words
    assert " --seed 0 --effort normal" in words


@pytest.mark.parametrize("num_rows", [1, MAX_ROWS, MAX_ROWS + 7])
def test_long_tables_say_what_they_leave_out(num_rows: int) -> None:
    rows = [(f"row {number}", TableCell(shown="x", number=number), figure(None, "0")) for number in range(num_rows)]
    shown = table("Rows.", ("name", "figure", "unknown"), rows, numbers=("figure",))
    assert shown.count("<tr>") == 1 + min(num_rows, MAX_ROWS)
    assert ("7 more are left out" in shown) == (num_rows > MAX_ROWS)
    assert 'data-key="0"' in shown
    assert "unknown" not in shown  # a column without anything in it
    assert re.search(r"<th scope=\"col\" class=\"number\"><button type=\"button\">figure</button></th>", shown)
