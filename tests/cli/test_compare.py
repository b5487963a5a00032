"""`autosync compare` as a command: its table, its document, and its mistakes. Its service is a fake."""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import load_cluster, save_cluster
from autosync.specs.model_file import load_model
from autosync.strategy.bundle import Bundle, save_bundle
from autosync.strategy.canonical import strategy_id
from autosync.strategy.presets import build_preset
from autosync.testing.trials import FakeService, FakeSteps
from autosync.trials import service as trials_service

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Shell

    Build = Callable[..., Path]

STEPS = {
    "torch-ddp": FakeSteps(seconds=0.2, noise=0.005),
    "ddp": FakeSteps(seconds=0.2, noise=0.005),
    "ddp#2": FakeSteps(seconds=0.2, noise=0.005),
    "sharded": FakeSteps(seconds=0.1, noise=0.005, cpu_share=0.9),
    "s.yaml": FakeSteps(seconds=0.1, noise=0.005),
    "best.yaml": FakeSteps(seconds=0.1, noise=0.005),
    "all_reduce_per_variable": FakeSteps(seconds=0.1, fails_at=1),
}


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """What the command asks the service to be; the service itself runs nothing."""
    asked: list[dict[str, Any]] = []

    def make(**fields: Any) -> FakeService:
        asked.append(fields)
        (fields["folder"] / "rank-0.log").write_text("what a rank said")
        return FakeService(STEPS)

    monkeypatch.setattr(trials_service, "TrialService", make)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return asked


def _compare(*names: str) -> tuple[str, ...]:
    return ("compare", "model.yaml", "--cluster", "cluster.yaml", *names)


def test_the_table_and_the_verdicts(shell: Shell, asked: list[dict[str, Any]]) -> None:
    assert shell.run(*_compare("torch-ddp", "ddp", "sharded")) == 0, shell.err
    lines = shell.out.splitlines()
    assert re.fullmatch("12 rounds of [23] to 5 steps of each, in turn:", lines[0])
    assert re.split(" {2,}", lines[2])[1:] == ["ms a step (95 % range)", "speed-up (95 % range)", "not hidden", "sent"]
    assert [line.split()[0] for line in lines[3:6]] == ["torch-ddp", "ddp", "sharded"]
    assert lines[3].split()[1].startswith(("199.", "200."))
    assert lines[5].endswith("1 MB")
    assert lines[6:9] == [
        "memory of a rank: 100 MB",
        "processors in use: 25% (ddp) to 90% (sharded)",
        "busy_cpu: sharded",
    ]
    assert lines[10].startswith("no difference found between ddp and torch-ddp (")
    assert lines[11].startswith(("sharded is 1.99", "sharded is 2.00"))
    assert lines[-1] == "sharded is the fastest: faster than each of the others."
    assert " to 5 steps of each; about " in shell.err
    (fields,) = asked
    assert (fields["target"], fields["model"].name, fields["cluster"].name) == ("model.yaml", "tiny", "three")
    assert not fields["folder"].exists()


def test_one_alone_is_compared_with_torch_ddp(shell: Shell) -> None:
    document = shell.json(*_compare("sharded"))
    assert [one["name"] for one in document["contestants"]] == ["torch-ddp", "sharded"]
    assert document["schema"] == "autosync.comparison/1"
    (ratio,) = document["ratios"]
    assert (ratio["name"], ratio["other"], ratio["verdict"]) == ("sharded", "torch-ddp", "faster")
    assert 1.9 < ratio["speedup"]["low"] <= ratio["speedup"]["value"] <= ratio["speedup"]["high"] < 2.1
    assert ratio["in_words"].startswith(("sharded is 1.99", "sharded is 2.00"))
    assert (document["best"], document["beats_first"]) == ("sharded", ["sharded"])
    measurement = document["contestants"][1]["measurement"]
    assert len(measurement["step_seconds"][0]) == document["num_rounds"] * document["steps_per_round"]["sharded"]
    assert measurement["exposed_seconds"] == pytest.approx(0.08, rel=0.05)


def test_what_is_not_hidden_knows_how_fast_devices_compute(shell: Shell) -> None:
    cluster = load_cluster("cluster.yaml")
    slow = replace(cluster, nodes=tuple(replace(node, compute=0.5) for node in cluster.nodes))
    save_cluster(Path("cluster.yaml"), slow)
    document = shell.json(*_compare("sharded"))
    exposed = [one["measurement"]["exposed_seconds"] for one in document["contestants"]]
    assert exposed == pytest.approx([0.16, 0.06], rel=0.05)


def test_one_against_itself(shell: Shell) -> None:
    document = shell.json(*_compare("ddp", "ddp", "--steps", "24"))
    assert [one["name"] for one in document["contestants"]] == ["ddp", "ddp#2"]
    assert (document["num_rounds"], document["steps_per_round"]) == (12, {"ddp": 2, "ddp#2": 2})
    assert (document["best"], document["ratios"][0]["verdict"]) == (None, "no difference found")


def test_a_dry_run_starts_nothing(shell: Shell, asked: list[dict[str, Any]]) -> None:
    dry = ("compare", "model.yaml", "--cluster", "local-2", "sharded", "--dry-run")
    assert shell.run(*dry) == 0, shell.err
    lines = shell.out.splitlines()
    assert lines[0] == "would be started on local-2 (launcher local):"
    assert lines[1].startswith("  localhost: RANK=0 ")
    assert "AUTOSYNC_CONTROL_TOKEN=HIDDEN " in lines[2]
    assert lines[2].endswith(" -m autosync.trials.rank_worker ADDRESS > LOGS/ranks-1/rank-1.log 2>&1")
    assert lines[4:6] == ["would be measured in turn:", "  torch-ddp: stock DDP as it ships"]
    assert lines[6].startswith("  sharded: all variables are reduce-scattered, ")
    document = shell.json(*dry)
    assert document["schema"] == "autosync.comparison-plan/1"
    assert [one["name"] for one in document["contestants"]] == ["torch-ddp", "sharded"]
    assert document["contestants"][1]["in_words"] == lines[6].partition(": ")[2]
    assert [process["rank"] for process in document["launch"]["processes"]] == [0, 1]
    assert not asked


def test_a_dry_run_refuses_what_cannot_be_started(shell: Shell, asked: list[dict[str, Any]]) -> None:
    nodes = tuple(Node(name=f"n{i}", host=f"h{i}", bandwidth_out=1e8, bandwidth_in=1e8) for i in range(2))
    save_cluster(Path("far.yaml"), ClusterSpec(name="far", nodes=nodes))
    for options in ((), ("--dry-run",)):
        assert shell.run("compare", "model.yaml", "--cluster", "far.yaml", "sharded", *options) == 2
        assert shell.err.startswith("error: far.yaml:6: nodes[0].host: n0 is on h0 (the local launcher ")
    assert not asked


def test_files_and_bundles_will_do(shell: Shell, build: Build) -> None:
    build("sharded", "s.yaml")
    model, cluster = load_model("model.yaml"), load_cluster("cluster.yaml")
    strategy = build_preset("sharded", model, cluster)
    identity = strategy_id(strategy, model, cluster)
    bundle = Bundle(strategy=strategy, model=model, cluster=cluster, strategy_id=identity, plan_id="0" * 16)
    save_bundle("best.yaml", bundle)
    document = shell.json(*_compare("s.yaml", "best.yaml", "torch-ddp"))
    assert [one["name"] for one in document["contestants"]] == ["s.yaml", "best.yaml", "torch-ddp"]


def test_one_that_fails_is_told_and_the_logs_are_kept(shell: Shell, asked: list[dict[str, Any]]) -> None:
    assert shell.run(*_compare("torch-ddp", "all_reduce_per_variable", "sharded")) == 0
    assert (
        shell.out.splitlines()[-1]
        == "all_reduce_per_variable was left out: raised: rank 0: all_reduce_per_variable fails here"
    )
    assert f"the logs of the ranks are in {asked[0]['folder']}" in shell.err
    assert (asked[0]["folder"] / "rank-0.log").exists()
    assert shell.run(*_compare("torch-ddp", "all_reduce_per_variable", "--json")) == 1
    assert shell.out == ""
    assert "error: fewer than two contestants could be measured (all_reduce_per_variable: raised: " in shell.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("model.yaml", "--cluster", "cluster.yaml"), "missing argument 'A B ...'"),
        (("model.yaml", "ddp"), "--cluster"),
        (("model.yaml", "shraded", "--cluster", "cluster.yaml"), "unknown contestant 'shraded' (known: "),
        (("model.yaml", "shraded", "--cluster", "cluster.yaml"), "did you mean 'sharded'?"),
        (("model.yaml", "no.yaml", "--cluster", "cluster.yaml"), "no.yaml: "),
        (("model.yaml", "hierarchical", "--cluster", "cluster.yaml"), "preset.hierarchical: "),
        (("model.yaml", "ddp", "--cluster", "nowhere"), "nowhere"),
        (("nowhere.yaml", "ddp", "--cluster", "cluster.yaml"), "nowhere.yaml: "),
        (("nowhere.py", "ddp", "--cluster", "cluster.yaml"), "nowhere.py: no such file"),
        (("model.yaml", "ddp", "--cluster", "cluster.yaml", "--budget", "soon"), "soon"),
        (("model.yaml", "ddp", "--cluster", "cluster.yaml", "--budget", "0s"), "above 0"),
        (("model.yaml", "ddp", "--cluster", "cluster.yaml", "--steps", "0"), "0 is not in the range"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], words: str, shell: Shell, asked: list[dict[str, Any]]) -> None:
    assert shell.run("compare", *arguments, "--json") == 2
    assert words in shell.err
    assert all(line.startswith(("error: ", "profiling ")) for line in shell.err.splitlines())
    assert shell.out == ""
    assert not asked


def test_what_the_engine_does_not_run_is_refused(
    shell: Shell, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autosync.trials.contestant_names.unsupported", lambda _: ["it takes more", "and more"])
    assert shell.run(*_compare("sharded")) == 2
    lines = shell.err.splitlines()
    assert [line.partition(" (")[0] for line in lines] == [
        "error: sharded cannot run: it takes more",
        "error: sharded cannot run: and more",
    ]
    assert not asked


def test_a_bundle_of_another_cluster_is_refused(shell: Shell) -> None:
    model = load_model("model.yaml")
    nodes = tuple(Node(name=f"n{i}", host=f"h{i}", bandwidth_out=1e8, bandwidth_in=1e8) for i in range(2))
    pair = ClusterSpec(name="pair", nodes=nodes)
    save_cluster(Path("pair.yaml"), pair)
    strategy = build_preset("sharded", model, pair)
    identity = strategy_id(strategy, model, pair)
    save_bundle(
        "best.yaml",
        Bundle(strategy=strategy, model=model, cluster=pair, strategy_id=identity, plan_id="0" * 16),
    )
    assert shell.run(*_compare("best.yaml", "shraded")) == 2
    assert shell.run(*_compare("best.yaml")) == 2
    assert "best.yaml:1: " in shell.err
    assert "the node n2 is new" in shell.err


def test_a_page_is_written(shell: Shell) -> None:
    assert shell.run(*_compare("torch-ddp", "sharded"), "--timeout", "90s", "-o", "page.html") == 0, shell.err
    assert shell.err.splitlines()[-1] == "wrote page.html"
    page = Path("page.html").read_text(encoding="utf-8")
    repeated = "autosync compare model.yaml --cluster cluster.yaml torch-ddp sharded --steps 60 --budget 120s"
    assert f"{repeated} --timeout 90s --seed 0" in page
    assert "times as fast as torch-ddp" in page
    Path("page.html").write_text("mine", encoding="utf-8")
    assert shell.run(*_compare("torch-ddp", "sharded"), "-o", "page.html") == 2
    assert Path("page.html").read_text(encoding="utf-8") == "mine"
    assert shell.run(*_compare("torch-ddp", "sharded"), "-o", "page.html", "--force") == 0
