"""docs/probe.md tells of every figure and every warning."""

import dataclasses
import re
import typing
from pathlib import Path

from autosync.specs.calibration import Calibration, NodeCalibration
from autosync.trials.probe.findings import FindingKind

PAGE = (Path(__file__).parents[3] / "docs" / "probe.md").read_text(encoding="utf-8")


def test_the_page_tells_of_every_warning() -> None:
    section = PAGE.partition("## Warnings")[2].partition("## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(typing.get_args(FindingKind))


def test_the_page_tells_of_every_figure() -> None:
    section = PAGE.partition("## What is measured")[2].partition("## ")[0]
    figures = {f.name for f in dataclasses.fields(NodeCalibration)} - {"name", "interface"}
    figures |= {"curves", "step_seconds", "step_variation", "cpu_share"}
    assert figures <= set(re.findall(r"`(\w+)`", section))
    assert {f.name for f in dataclasses.fields(Calibration)} >= {
        "curves",
        "step_seconds",
        "step_variation",
        "cpu_share",
    }
