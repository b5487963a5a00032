"""The pages of comparisons and diagnoses: complete, well formed, and deaf to what names try."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace

import pytest

from autosync.datasets.measured_input import MeasuredInput
from autosync.report.comparison_page import ComparisonReport, comparison_page
from autosync.report.diagnosis_page import DiagnosisReport, diagnosis_page
from autosync.specs.input_cost import InputCost
from tests.helpers.pages import Reader, check_deaf

_ATTACK = "<script>window.hit=1</script>"


def _check_hostile(found: Reader) -> None:
    assert _ATTACK in found.text
    assert not any("window.hit" in text for text in [*found.content["script"][1:], *found.content["style"]])
    for image in found.of("img"):
        svg = base64.b64decode((image["src"] or "").partition("base64,")[2]).decode()
        assert "<script" not in svg


def test_a_comparison_is_shown(compared: ComparisonReport) -> None:
    page = comparison_page(compared)
    found = check_deaf(page)
    _check_hostile(found)
    assert "sharded is 2.0" in found.text or "sharded is 1.9" in found.text
    assert "and faster than each of the others." in found.text
    assert "broken was left out: raised: " in found.text
    assert re.search("12 rounds of [23] to 5 steps of each", found.text)
    for words in ("stock DDP as it ships", "torch", "autosync compare", "n1", "1 MB"):
        assert words in found.text
    charts = json.loads(found.content["script"][0])
    assert len(charts) == 2
    assert [one["label"] for one in charts[0]["series"]][:2] == ["torch-ddp", "sharded"]
    assert "is busy" in (found.of("img")[0]["alt"] or "")


def test_a_diagnosis_is_shown(diagnosed: DiagnosisReport) -> None:
    found = check_deaf(diagnosis_page(diagnosed))
    _check_hostile(found)
    assert "50% of the step" in found.text
    assert "Better synchronisation makes it at most 2.00 times as fast" in found.text
    assert "2.00 × as fast" in found.text
    for words in ("slow rank", "compute-bound", "Not known", "autosync cluster check c.yaml", "n0", "from 12 steps"):
        assert words in found.text
    (chart,) = json.loads(found.content["script"][0])
    assert chart["names"] == ["slow rank", "compute-bound"]
    assert chart["series"][0]["values"] == [200, 150]


def test_waits_for_input_are_a_part_of_a_step(compared: ComparisonReport) -> None:
    assert "waiting for input" not in comparison_page(compared)
    model = replace(compared.model, input=InputCost(worker_seconds=0.01, by_loader=True))
    measured = {
        name: replace(one, input=MeasuredInput(wait_seconds=(0.01, 0.03)))
        for name, one in compared.comparison.measurements.items()
    }
    comparison = replace(compared.comparison, measurements=measured)
    found = check_deaf(comparison_page(replace(compared, model=model, comparison=comparison)))
    assert "waiting for input" in found.text
    chart = json.loads(found.content["script"][0])[1]
    # The bars of the last part end where the step does.
    assert chart["series"][0]["label"] == "waiting for input"
    medians = [one.median_seconds * 1e3 for one in measured.values()]
    assert chart["series"][0]["values"] == pytest.approx(medians, rel=1e-3)


def test_pictures_show_the_winner_and_say_what_they_leave_out(compared: ComparisonReport) -> None:
    first, best = "torch-ddp", "sharded"
    known = compared.comparison.measurements
    measured = {first: known[first], **{f"other {n}": known[first] for n in range(6)}, best: known[best]}
    strategies = {**dict.fromkeys(measured), best: compared.strategies[best]}
    comparison = replace(compared.comparison, measurements=measured)
    found = check_deaf(comparison_page(replace(compared, comparison=comparison, strategies=strategies)))
    chart = json.loads(found.content["script"][0])[0]
    assert [one["label"] for one in chart["series"]][:2] == [first, best]
    assert "Not shown: 2 more contestants." in found.text
    assert "Not shown: 4 more contestants." in (found.of("img")[0]["alt"] or "")
