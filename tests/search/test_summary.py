"""The summary: docs/proof.md names its fields, and users and programs get the same facts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autosync.cli.verdict import describe
from autosync.search.candidates import candidate
from autosync.search.shown_summary import InWords, load_shown, shown
from autosync.search.study_folder import StudyFolder
from autosync.search.tune import tune
from autosync.search.tuned import Tuned
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import save_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model, save_model
from autosync.specs.profile.quality import profile_fields, profile_warning
from autosync.specs.profiled import Profiled
from autosync.strategy.bundle import load_bundle
from autosync.strategy.presets import build_preset
from autosync.testing.trials import FakeService, FakeSteps

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "proof.md").read_text(encoding="utf-8")


@pytest.fixture
def tuned(model: ModelSpec, cluster: ClusterSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Tunes on a service in which stock DDP takes so many seconds a step and all others 0.1."""
    monkeypatch.chdir(tmp_path)
    save_cluster(Path("pair.yaml"), cluster)

    def run(stock_seconds: float, spec: ModelSpec = model, **settings: Any) -> Tuned:
        save_model(spec, "model.yaml")
        steps = {"stock DDP": FakeSteps(seconds=stock_seconds, noise=0.005)}
        service = FakeService(steps, others=FakeSteps(seconds=0.1, noise=0.005))
        monkeypatch.setattr("autosync.search.tuning_plan.TrialService", lambda **_: service)
        return tune(
            model="model.yaml", cluster="pair.yaml", study="s", proposer="random", **{"num_trials": 5, **settings}
        )

    return run


@pytest.fixture
def doubtful(model: ModelSpec) -> ModelSpec:
    """A model whose profile was taken on a busy machine."""
    profiled = Profiled(num_steps=31, low_seconds=0.005, high_seconds=0.09, flags=("busy_machine", "unsteady"))
    return replace(model, timeline=replace(model.timeline, profiled=profiled))


def described(tuned: Tuned, bundle: Path | None = None) -> str:
    """The verdict, which is the same from the study's folder."""
    found = shown(tuned.summary)
    assert load_shown(StudyFolder(tuned.folder)) == found
    return describe(found, tuned.folder, bundle=bundle)


def _documented() -> list[set[str]]:
    """The fields of each table of the page."""
    tables = PAGE.partition("## `summary.json`")[2].split("\n\n| field of")
    return [set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| ([^|]*) \|", one, re.MULTILINE)))) for one in tables]


def test_every_field_is_documented(tuned, doubtful: ModelSpec) -> None:  # type: ignore[no-untyped-def]
    summary = tuned(0.2).summary
    outer, winner = _documented()
    assert set(summary) == outer
    assert set(summary["winner"]) == winner - {"winner"}
    contests = next(line for line in PAGE.splitlines() if line.startswith("| `contests` |"))
    assert set(summary["contests"][0]) <= set(re.findall(r"`(\w+)`", contests))
    profile = next(line for line in PAGE.splitlines() if line.startswith("| `profile` |"))
    assert set(profile_fields(doubtful) or {}) <= set(re.findall(r"`(\w+)`", profile))
    assert set(summary["prospect"]) <= set(re.findall(r"`(\w+)`", PAGE))


def test_a_winner_is_told_with_what_it_does_and_how_it_is_used(tuned) -> None:  # type: ignore[no-untyped-def]
    found = tuned(0.2)
    winner = found.summary["winner"]
    assert winner["beats_stock_ddp"]
    assert winner["speedup_over_stock_ddp"]["verdict"] == "faster"
    roles = {result["role"] for result in found.summary["contests"]}
    assert {"default", "best bucket", "finalist"} <= roles or {"default", "best preset", "finalist"} <= roles
    text = described(found)
    assert f"The winner is {winner['name']}: 2.0" in text
    assert f"what it does: {winner['in_words']}" in text
    assert "stock DDP:    200" in text
    assert "compute 20 ms" in text
    headroom = winner["headroom"]
    assert headroom["share_of_bound"] * headroom["most_times_as_fast"] == pytest.approx(1.0)
    assert headroom["most_times_as_fast"] == pytest.approx(0.1 / found.summary["bound_seconds"], rel=0.05)
    assert "  what is left: 2.0" in text
    assert f" times stock DDP, {headroom['in_words']}" in " ".join(text.split())
    assert "How to use it:\n  " in text
    assert json.loads(Path("autosync-studies/s/summary.json").read_text()) == found.summary


def test_the_page_shows_what_a_replay_of_the_shipped_records_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The winner's paragraph, to the letter: of two racks, whose uplinks are the busiest links."""
    command = re.search(r"`autosync tune (\w+) --cluster (\S+) --replay datasets/records (.*)`", PAGE)
    assert command is not None
    assert command[3] == "--proposer random --trials 12"
    monkeypatch.chdir(tmp_path)
    found = tune(
        model=command[1],
        cluster=command[2],
        replay=str(ROOT / "datasets" / "records"),
        proposer="random",
        num_trials=12,
        study="s",
    )
    told = re.search(r"^The winner is .*?(?=\n\n)", described(found), re.MULTILINE | re.DOTALL)
    assert told is not None
    assert f"```text\n{told[0]}\n```" in PAGE
    contests = found.summary["contests"]
    assert isinstance(contests, list)
    assert {one["time"]["busiest_link"] for one in contests} <= {
        f"uplink of rack {rack}, {way}" for rack in ("east", "west") for way in ("out", "in")
    }


def test_where_nothing_is_faster_it_is_told_how_much_there_is_to_gain(tuned) -> None:  # type: ignore[no-untyped-def]
    found = tuned(0.09)
    assert not found.summary["winner"]["beats_stock_ddp"]
    text = described(found, Path("mine.yaml"))
    assert (
        "Nothing tried is faster than stock DDP for certain: keep it.\nCommunication that compute does not hide is "
        in text
    )
    assert "more than 4.5" in text
    assert "How to use it" not in text
    assert text.endswith("bundle: mine.yaml (stock DDP's buckets as a strategy)\nstudy:  autosync-studies/s")
    # An interval above 1 beside this sentence would contradict it, were it not explained.
    assert "by its own interval" not in text
    other = found.summary["contests"][1]
    other["speedup_over_stock_ddp"] |= {"value": 1.02, "low": 1.01}
    text = describe(shown(found.summary), found.folder)
    assert f"keep it.\n{other['name']} would be faster by its own interval; in " in text


@pytest.mark.parametrize("stock_seconds", [0.2, 0.09])
def test_what_is_known_of_some_models_is_told(tuned, stock_seconds: float) -> None:  # type: ignore[no-untyped-def]
    found = tuned(stock_seconds)
    graphs, loader = InWords(in_words="as they were"), InWords(in_words="2 workers")
    told = replace(shown(found.summary), graphs=graphs, loader=loader)
    lines = [line.split() for line in describe(told, found.folder).splitlines()]
    assert ["its", "graphs:", "as", "they", "were"] in lines
    assert ["its", "input:", "2", "workers"] in lines


def test_a_lossy_winner_is_named_as_such(  # type: ignore[no-untyped-def]
    tuned, model: ModelSpec, cluster: ClusterSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = candidate("preset:fp16", build_preset("fp16", model, cluster), model, cluster)
    monkeypatch.setattr("autosync.search.search_loop.choose_finalists", lambda *_, **__: [half])
    monkeypatch.setattr("autosync.search.guarantee._speedup", _lossy_first)
    found = tuned(0.2, allow=("lossy",))
    winner = found.summary["winner"]
    assert winner["classes"] == ["lossy"]
    assert set(found.summary["fidelity"]) >= {winner["name"]}
    assert "not known: replayed compute has no gradients" in winner["training"]
    text = described(found)
    assert winner["name"].endswith(" (lossy)")
    assert f"The winner is {winner['name']}: " in text
    assert f"\n{winner['name']}: what it does to training is not known" in text
    assert f"training:     {winner['training']}" in text
    assert winner["headroom"] is None
    assert "what is left: not known: the bound is one of exact strategies" in text


def test_what_speaks_against_the_profile_goes_wherever_the_model_goes(  # type: ignore[no-untyped-def]
    tuned, doubtful: ModelSpec
) -> None:
    """The study, its records, the bundle, the summary and the verdict."""
    words = str(profile_warning(doubtful))
    found = tuned(0.2, spec=doubtful)
    assert found.summary["profile"]["in_words"] == words
    assert {record.environment["profile"] for record in found.records} == {"busy_machine, unsteady"}
    told = f"{words[0].upper()}{words[1:]}."
    assert " ".join(described(found).split()).count(told) == 1
    assert profile_warning(load_bundle(found.folder / "best.yaml").model) == words
    assert profile_warning(load_model("autosync-studies/s/model.yaml")) == words


def test_nothing_is_said_of_a_profile_that_nothing_speaks_against(tuned) -> None:  # type: ignore[no-untyped-def]
    found = tuned(0.2)
    assert found.summary["profile"] is None
    assert all("profile" not in record.environment for record in found.records)
    # That it has no cuts speaks against nothing.
    assert described(found).count("profile") == str(found.summary["stages"]["in_words"]).count("profile")


def _lossy_first(result: Any) -> float:
    strategy = result.candidate.strategy
    return 2.0 if strategy is not None and not strategy.is_exact else 1.0
