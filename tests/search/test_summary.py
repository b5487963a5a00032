"""The summary: docs/proof.md names its fields, and people are told what programs are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from autosync.cli.verdict import describe
from autosync.search.candidates import candidate
from autosync.search.tune import Tuned, tune
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import save_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import save_model
from autosync.strategy.presets import build_preset
from autosync.testing.trials import FakeService, FakeSteps

PAGE = (Path(__file__).parents[2] / "docs" / "proof.md").read_text(encoding="utf-8")


@pytest.fixture
def tuned(model: ModelSpec, cluster: ClusterSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Tunes on a service in which stock DDP takes so many seconds a step and all others 0.1."""
    monkeypatch.chdir(tmp_path)
    save_model(model, "model.yaml")
    save_cluster(Path("pair.yaml"), cluster)

    def run(stock_seconds: float, **settings: Any) -> Tuned:
        steps = {"stock DDP": FakeSteps(seconds=stock_seconds, noise=0.005)}
        service = FakeService(steps, others=FakeSteps(seconds=0.1, noise=0.005))
        monkeypatch.setattr("autosync.search.plan.TrialService", lambda **_: service)
        return tune(
            model="model.yaml", cluster="pair.yaml", study="s", proposer="random", **{"num_trials": 5, **settings}
        )

    return run


def _documented() -> list[set[str]]:
    """The fields of each table of the page."""
    tables = PAGE.partition("## `summary.json`")[2].split("\n\n| field of")
    return [set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| ([^|]*) \|", one, re.MULTILINE)))) for one in tables]


def test_every_field_is_documented(tuned) -> None:  # type: ignore[no-untyped-def]
    summary = tuned(0.2).summary
    outer, winner = _documented()
    assert set(summary) == outer
    assert set(summary["winner"]) == winner - {"winner"}
    contests = next(line for line in PAGE.splitlines() if line.startswith("| `contests` |"))
    assert set(summary["contests"][0]) <= set(re.findall(r"`(\w+)`", contests))
    assert set(summary["prospect"]) <= set(re.findall(r"`(\w+)`", PAGE))


def test_a_winner_is_told_with_what_it_does_and_how_it_is_used(tuned) -> None:  # type: ignore[no-untyped-def]
    found = tuned(0.2)
    winner = found.summary["winner"]
    assert winner["beats_stock_ddp"]
    assert winner["speedup_over_stock_ddp"]["verdict"] == "faster"
    roles = {contest["role"] for contest in found.summary["contests"]}
    assert {"default", "best bucket", "finalist"} <= roles or {"default", "best preset", "finalist"} <= roles
    text = describe(found, None)
    assert f"The winner is {winner['name']}: 2.0" in text
    assert f"what it does: {winner['in_words']}" in text
    assert "stock DDP:    200" in text
    assert "compute 20 ms" in text
    assert "How to use it:\n  " in text
    assert json.loads(Path("autosync-studies/s/summary.json").read_text()) == found.summary


def test_where_nothing_is_faster_it_is_told_how_much_there_is_to_gain(tuned) -> None:  # type: ignore[no-untyped-def]
    found = tuned(0.09)
    assert not found.summary["winner"]["beats_stock_ddp"]
    text = describe(found, Path("mine.yaml"))
    assert (
        "Nothing tried is faster than stock DDP for certain: keep it.\nCommunication that compute does not hide is "
        in text
    )
    assert "more than 4.5" in text
    assert "How to use it" not in text
    assert text.endswith("bundle: mine.yaml (stock DDP's buckets as a strategy)\nstudy:  autosync-studies/s")


def test_a_lossy_winner_is_named_as_such(  # type: ignore[no-untyped-def]
    tuned, model: ModelSpec, cluster: ClusterSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = candidate("preset:fp16", build_preset("fp16", model, cluster), model, cluster)
    monkeypatch.setattr("autosync.search.tune.choose_finalists", lambda *_: [half])
    monkeypatch.setattr("autosync.search.guarantee._speedup", _lossy_first)
    found = tuned(0.2, allow=("lossy",))
    winner = found.summary["winner"]
    assert winner["classes"] == ["lossy"]
    assert set(found.summary["fidelity"]) >= {winner["name"]}
    assert "not known: replayed compute has no gradients" in winner["training"]
    text = describe(found, None)
    assert winner["name"].endswith(" (lossy)")
    assert f"The winner is {winner['name']}: " in text
    assert f"\n{winner['name']}: what it does to training is not known" in text
    assert f"training:     {winner['training']}" in text


def _lossy_first(contest: Any) -> float:
    strategy = contest.candidate.strategy
    return 2.0 if strategy is not None and not strategy.is_exact else 1.0
