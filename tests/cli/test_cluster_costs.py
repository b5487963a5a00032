"""`autosync cluster costs`: profiles with their sources, and the figures that count on a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from autosync.cli.cluster import cluster
from autosync.specs.cost_figures import FIGURES
from autosync.specs.cost_profiles import profile_names

FILE = """schema: autosync.cluster/1
launcher: ssh
nodes: [{name: a, count: 2, bandwidth: 1 Gbit/s}]
costs: {profile: servers-cpu, latency: 5 us}
"""


def shown(*words: str) -> str:
    found = CliRunner().invoke(cluster, ["costs", *words])
    assert found.exit_code == 0, found.output
    return found.stdout


def figures(*words: str) -> dict[str, dict[str, Any]]:
    found = json.loads(shown(*words, "--json"))
    return {one["figure"]: one for one in found["figures"]}


def test_profiles_are_listed() -> None:
    assert [line.split()[0] for line in shown().splitlines()[1:]] == list(profile_names())
    assert [one["name"] for one in json.loads(shown("--json"))["profiles"]] == list(profile_names())


def test_a_profile_is_shown_with_its_sources() -> None:
    text = shown("nccl-pcie")
    assert "tuning.cc" in text
    found = figures("nccl-pcie")
    assert list(found) == list(FIGURES)
    assert found["latency"]["words"] == "14 µs"
    assert found["flow_limit"]["value"] is None


def test_a_cluster_s_figures_say_where_they_are_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lab.yaml").write_text(FILE, encoding="utf-8")
    assert shown("lab.yaml").splitlines()[0] == "lab: costs of the profile servers-cpu"
    found = figures("lab.yaml")
    assert (found["latency"]["words"], found["latency"]["from"]) == ("5 µs", "file")
    assert (found["launch"]["words"], found["launch"]["from"]) == ("2.5 µs", "profile")


def test_a_cluster_names_its_profile_in_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lab.yaml").write_text(FILE, encoding="utf-8")
    head = CliRunner().invoke(cluster, ["show", "lab.yaml"]).stdout.splitlines()[0]
    assert head == "lab: launcher ssh, backend gloo, costs servers-cpu with 1 figure changed"
