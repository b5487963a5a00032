"""Every result that depends on a profile of a busy machine says so, in one line and in its JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autosync.plan.bundling import bundled
from autosync.search.winner_usage import write_bundle
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model, save_model
from autosync.specs.profile.quality import profile_warning
from autosync.specs.profiled import Profiled
from autosync.strategy.presets import build_preset

if TYPE_CHECKING:
    from conftest import Shell

CONTEXT = ("--model", "model.yaml", "--cluster", "cluster.yaml")
COMMANDS = {
    "simulate": ("simulate", "ddp", *CONTEXT),
    "simulate several": ("simulate", "ddp", "ps", *CONTEXT),
    "simulate a bundle": ("simulate", "best.yaml"),
    "strategy show": ("strategy", "show", "s.yaml", *CONTEXT),
    "strategy show a bundle": ("strategy", "show", "best.yaml"),
    "compare": ("compare", "model.yaml", "--cluster", "local-2", "ddp", "ddp_cap", "--dry-run"),
    "tune": ("tune", "model.yaml", "--cluster", "local-2", "--proposer", "random", "--trials", "3", "--dry-run"),
}
LINE = "The profile was taken on a busy machine: "


@pytest.fixture
def words(shell: Shell, build: Callable[..., Path]) -> str:
    """What is said of the profile of model.yaml, which a strategy and a bundle are built for."""
    build("ddp", "s.yaml")
    model = load_model("model.yaml")
    profiled = Profiled(num_steps=31, low_seconds=0.001, high_seconds=9.0, flags=("busy_machine", "unsteady"))
    model = replace(model, timeline=replace(model.timeline, profiled=profiled))
    save_model(model, "model.yaml")
    cluster = load_cluster("cluster.yaml")
    write_bundle(bundled(build_preset("ddp", model, cluster), model, cluster), Path("best.yaml"), None)
    return str(profile_warning(model))


@pytest.mark.parametrize("name", COMMANDS)
def test_it_is_told_in_one_line_and_in_the_json(name: str, shell: Shell, words: str) -> None:
    assert shell.run(*COMMANDS[name]) == 0, shell.err
    assert [line for line in shell.out.splitlines() if "busy machine" in line] == [f"T{words[1:]}."]
    assert shell.json(*COMMANDS[name])["profile"]["in_words"] == words


@pytest.mark.parametrize("name", COMMANDS)
def test_what_was_computed_is_not_doubted(name: str, shell: Shell, words: str) -> None:
    del words
    for path in ("model.yaml", "best.yaml"):
        text = Path(path).read_text(encoding="utf-8")
        begin, end = text.index("profiled:"), text.index("forward:")
        Path(path).write_text(text[:begin] + text[end:], encoding="utf-8")
    assert shell.run(*COMMANDS[name]) == 0, shell.err
    assert "busy machine" not in shell.out + shell.err
    assert shell.json(*COMMANDS[name])["profile"] is None


def test_a_preset_that_is_built_for_it_is_built_with_a_warning(shell: Shell, words: str) -> None:
    assert shell.run("strategy", "build", "ddp", "model.yaml", "--cluster", "cluster.yaml") == 0
    assert f"T{words[1:]}." in shell.err
    assert "busy machine" not in shell.out


def test_tuning_begins_with_the_warning(shell: Shell, words: str) -> None:
    """Before any time is spent on trials."""
    assert shell.run(*COMMANDS["tune"]) == 0, shell.err
    assert words in shell.err
