"""`autosync draw`: pictures in files, on stdout and as facts; mistakes are reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model
from autosync.strategy.bundle import Bundle, save_bundle
from autosync.strategy.canonical import strategy_id
from autosync.strategy.presets import build_preset

if TYPE_CHECKING:
    from typing import Any

    Build = Callable[..., Path]
    Shell = Any  # the class of the fixture in conftest.py, which tests cannot import

FOR_MODEL = ("--model", "model.yaml", "--cluster", "cluster.yaml")


@pytest.fixture
def trace(shell: Shell) -> Path:
    """Five steps of 100 ms on one rank."""
    events = [
        {"ph": "X", "name": name, "cat": "compute", "pid": 0, "tid": 0, "ts": ts, "dur": 4e4, "args": {"iteration": i}}
        for i in range(5)
        for name, ts in (("forward", i * 1e5), ("backward", i * 1e5 + 5e4))
    ]
    Path("trace-rank0.json").write_text(json.dumps(events))
    return Path("trace-rank0.json")


def words(text: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]


def test_a_plan_is_drawn_from_a_file_a_preset_or_a_bundle(shell: Shell, build: Build) -> None:
    path = build("sharded", "s.yaml")
    assert shell.run("draw", "plan", path, *FOR_MODEL, "-o", "plan.svg") == 0
    assert (shell.out, shell.err) == ("", "wrote plan.svg\n")
    drawn = Path("plan.svg").read_text()
    assert {"sharded", "gradients"} <= set(words(drawn))
    assert shell.run("draw", "plan", "sharded", *FOR_MODEL) == 0
    assert shell.out == drawn
    model, cluster = load_model("model.yaml"), load_cluster("cluster.yaml")
    strategy = build_preset("sharded", model, cluster)
    bundle = Bundle(
        strategy=strategy,
        model=model,
        cluster=cluster,
        strategy_id=strategy_id(strategy, model, cluster),
        plan_id="0" * 16,
    )
    save_bundle("best.yaml", bundle)
    assert shell.run("draw", "plan", "best.yaml") == 0
    assert shell.out == drawn


def test_a_plan_has_the_title_that_is_asked_for(shell: Shell) -> None:
    assert shell.run("draw", "plan", "ddp", *FOR_MODEL, "--title", "today's <default>") == 0
    assert words(shell.out)[0] == "today's <default>"


def test_a_plan_as_facts(shell: Shell) -> None:
    found = shell.json("draw", "plan", "ddp", *FOR_MODEL, "-o", "plan.svg")
    assert found["schema"] == "autosync.picture/1"
    assert (found["output"], found["messages"], found["lanes"]) == ("plan.svg", 2, 1)
    assert Path("plan.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("ddp",), "error: ddp names no model and no cluster (a preset is built for a model on a cluster); "),
        (("ddp", "--model", "model.yaml"), "error: --cluster is missing (--model and --cluster go together)"),
        (("nothing.yaml",), "error: nothing.yaml: cannot be read: No such file or directory ("),
        (("nothing.yaml", *FOR_MODEL), "error: nothing.yaml: cannot be read: No such file or directory ("),
        (("hierarchical", *FOR_MODEL), "error: preset.hierarchical: three has one rank on every node ("),
    ],
)
def test_what_cannot_be_drawn_is_told(arguments: tuple[str, ...], line: str, shell: Shell) -> None:
    assert shell.run("draw", "plan", *arguments, "-o", "plan.svg") == 2
    assert shell.err.startswith(line)
    assert not Path("plan.svg").exists()


def test_no_picture_is_replaced_unasked(shell: Shell, trace: Path) -> None:
    Path("kept.svg").write_text("kept")
    for arguments in (("plan", "ddp", *FOR_MODEL), ("timeline", trace)):
        assert shell.run("draw", *arguments, "-o", "kept.svg") == 2
        assert shell.err == "error: kept.svg exists (no file is replaced unasked); --force replaces it\n"
        assert Path("kept.svg").read_text() == "kept"
    assert shell.run("draw", "timeline", trace, "-o", "kept.svg", "--force") == 0
    assert Path("kept.svg").read_text() != "kept"


def test_a_timeline_is_drawn(shell: Shell, trace: Path) -> None:
    assert shell.run("draw", "timeline", trace, "-o", "t.svg") == 0
    assert "step 3" not in words(Path("t.svg").read_text())
    assert shell.run("draw", "timeline", trace, "--steps", "1", "--first", "3") == 0
    assert "step 3" in words(shell.out)


def test_a_timeline_as_facts(shell: Shell, trace: Path) -> None:
    found = shell.json("draw", "timeline", trace, trace, "--first", "1")
    assert found["output"] is None
    first, second = found["ranks"]
    assert first == second
    assert (first["rank"], first["first_step"], first["num_steps"]) == ("rank 0", 1, 2)
    assert first["seconds"] == pytest.approx(0.2)


def test_what_is_no_timeline_is_told(shell: Shell, trace: Path) -> None:
    assert shell.run("draw", "timeline", trace, "--first", "3", "--steps", "4") == 2
    assert shell.err.startswith("error: the trace does not have the 4 steps from 3 on (")
    assert shell.run("draw", "timeline", "model.yaml") == 2
    assert shell.err.startswith("error: model.yaml:1: it is no JSON (")
    assert shell.run("draw", "timeline") == 2
