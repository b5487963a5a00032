"""The page is complete, well formed and small, and hostile names in a study have no effect on it."""

from __future__ import annotations

import base64
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from autosync.report.charts import best_so_far
from autosync.report.page import report_page, write_report
from autosync.report.study_report import StudyReport, TrialReport, read_study_report
from autosync.report.tables import MAX_ROWS, TableCell, figure, table
from autosync.report.use_sections import tune_command
from autosync.report.verdict import verdict_sentence
from autosync.search.study_folder import StudyFolder
from tests.helpers.pages import check_deaf

_MAX_BYTES = 3_000_000


def test_a_page_shows_a_study(report: StudyReport) -> None:
    page = report_page([report])
    found = check_deaf(page)
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
    captions = [image["alt"] or "" for image in found.of("img")]
    assert [caption.split(" of ")[0] for caption in captions] == ["A step", "The plan", "The nodes and links"]
    assert "above one of" in captions[0]
    assert "recorded after the proof" in captions[0]
    for chart in charts:
        assert chart["x"] == sorted(chart["x"])
        assert all(len(one["values"]) == len(chart["x"]) for one in chart["series"])
    assert len([1 for one in found.tags if one[0] == "caption"]) == len(found.of("table"))
    assert all(one.get("scope") in {"col", "row"} for one in found.of("th"))


def test_without_recorded_timelines_they_are_simulated(study: StudyFolder, tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "older")
    shutil.copytree(study.path, folder.path)
    folder.winner_timeline.write_text("no trace", encoding="utf-8")
    captions = [image["alt"] or "" for image in check_deaf(report_page([read_study_report(folder)])).of("img")]
    assert "as the timeline simulator plays it" in captions[0]
    shutil.rmtree(folder.timelines)
    captions = [image["alt"] or "" for image in check_deaf(report_page([read_study_report(folder)])).of("img")]
    assert "as the timeline simulator plays it" in captions[0]


def test_the_cluster_is_drawn_with_the_load_of_its_links(report: StudyReport) -> None:
    found = check_deaf(report_page([report]))
    image = next(one for one in found.of("img") if "each link is busy" in (one["alt"] or ""))
    svg = base64.b64decode((image["src"] or "").partition("base64,")[2]).decode()
    for words in ("n0", "n1", "stock DDP", "the winner", "%"):
        assert words in svg


def test_waits_for_input_are_a_part_of_a_step(report: StudyReport) -> None:
    waiting = tuple(replace(one, time=replace(one.time, input_seconds=0.03)) for one in report.summary.contests)
    assert "waiting for input" not in report_page([report])
    found = check_deaf(report_page([replace(report, summary=replace(report.summary, contests=waiting))]))
    assert "waiting for input" in found.text
    assert "30 ms" in found.text
    parts = [[one["label"] for one in chart["series"]] for chart in json.loads(found.content["script"][0])]
    assert any(labels[0] == "waiting for input" for labels in parts)


def test_a_hostile_study_is_data(hostile: StudyReport) -> None:
    found = check_deaf(report_page([hostile, hostile]))
    assert found.text.count("<script>window.hit=1</script>") > 20
    assert "window.hit" in found.content["script"][0]
    assert not any("window.hit" in text for text in [*found.content["script"][1:], *found.content["style"]])
    for image in found.of("img"):
        svg = base64.b64decode((image["src"] or "").partition("base64,")[2]).decode()
        assert "<script" not in svg
        assert "<img" not in svg


def test_a_thousand_trials_fit(thousand: StudyReport) -> None:
    page = report_page([thousand])
    found = check_deaf(page)
    assert len(page.encode()) < _MAX_BYTES
    charts = json.loads(found.content["script"][0])
    assert [chart["xLabel"] for chart in charts[:2]] == ["trial", "minutes"]
    assert len(charts[0]["x"]) == 1000


def test_a_folder_with_only_its_verdict_gives_a_shorter_page(alone: StudyReport) -> None:
    found = check_deaf(report_page([alone]))
    assert "The study's trials are not in its folder." in found.text
    assert "The winner's bundle is not in the study's folder." in found.text
    assert json.loads(found.content["script"][0]) == []
    assert alone.winner.name in found.text


def test_several_studies_are_on_one_page(report: StudyReport, alone: StudyReport) -> None:
    found = check_deaf(report_page([report, alone]))
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
    found = check_deaf(report_page([kept]))
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


def test_the_command_tunes_the_same_script(report: StudyReport) -> None:
    assert report.settings is not None
    words = tune_command(replace(report.settings, is_script=True, task="train.py --name 'a b'", cluster="c.yaml"))
    assert words.startswith("autosync tune --cluster c.yaml --trials 5 ")
    assert words.endswith(" --seed 0 -- train.py --name 'a b'")


@pytest.mark.parametrize("num_rows", [1, MAX_ROWS, MAX_ROWS + 7])
def test_long_tables_say_what_they_leave_out(num_rows: int) -> None:
    rows = [(f"row {number}", TableCell(shown="x", number=number), figure(None, "0")) for number in range(num_rows)]
    shown = table("Rows.", ("name", "figure", "unknown"), rows, numbers=("figure",))
    assert shown.count("<tr>") == 1 + min(num_rows, MAX_ROWS)
    assert ("7 more are left out" in shown) == (num_rows > MAX_ROWS)
    assert 'data-key="0"' in shown
    assert "unknown" not in shown  # a column without anything in it
    assert re.search(r"<th scope=\"col\" class=\"number\"><button type=\"button\">figure</button></th>", shown)
