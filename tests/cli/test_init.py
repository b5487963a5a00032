"""`autosync init`: what it asks, what it writes, and what it checks. No node is contacted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from autosync.cli import init as command
from autosync.cli import operands
from autosync.errors import InputError
from autosync.launchers import node_check
from autosync.launchers.node_check import ClusterCheck, NodeFinding
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.trials import probe as probing

Run = Callable[..., Result]


@pytest.fixture
def findings() -> list[NodeFinding]:
    """What the check of the nodes finds."""
    return []


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The clusters that were measured; the measurements are the claims of the file."""
    names: list[str] = []

    class Probed:
        findings = ()

        def __init__(self, cluster: ClusterSpec) -> None:
            self.cluster = cluster

    def probe(cluster: ClusterSpec, **_: object) -> Probed:
        names.append(cluster.name)
        return Probed(cluster)

    monkeypatch.setattr(probing, "probe", probe)
    return names


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, findings: list[NodeFinding], probed: list[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(node_check, "check_nodes", lambda *_: ClusterCheck(nodes=(), findings=tuple(findings)))

    def invoke(*arguments: str, answers: str = "") -> Result:
        return CliRunner().invoke(command.init, arguments, input=answers)

    return invoke


def test_all_is_asked(run: Run, probed: list[str]) -> None:
    answers = "ssh\ngpu[1-2] store\n4\n25 Gbit/s, 25 Gbit/s, 10 Gbit/s\n/opt/python\ny\nn\n"
    found = run(answers=answers)
    assert found.exit_code == 0, found.output
    spec = load_cluster("cluster.yaml")
    assert [(node.host, node.devices) for node in spec.nodes] == [("gpu1", 4), ("gpu2", 4), ("store", 4)]
    assert [node.bandwidth_out for node in spec.nodes] == [25e9 / 8, 25e9 / 8, 10e9 / 8]
    assert (spec.name, spec.launcher, spec.python) == ("cluster", "ssh", "/opt/python")
    assert spec.alike == (("gpu1", "gpu2"),)
    for words in ("hosts that ssh reaches", "Check every node now?", "Measure the links now?", "checking every node"):
        assert words in found.stderr
    assert "12 worker ranks" in found.stdout
    assert found.stderr.splitlines()[-1] == "next: autosync tune MODEL --cluster cluster.yaml"
    assert probed == []


def test_what_options_give_is_not_asked(run: Run, probed: list[str]) -> None:
    options = ("--launcher", "ssh", "--hosts", "a b", "--devices", "1", "--bandwidth", "1 Gbit/s", "--python", "/p")
    found = run(*options, "--no-check", "--probe", "-o", "lab.yaml")
    assert found.exit_code == 0, found.output
    assert "?" not in found.stderr
    assert "checking" not in found.stderr
    assert probed == ["lab"]
    assert "wrote lab.yaml with what was measured" in found.stderr


def test_with_yes_defaults_are_taken(run: Run, probed: list[str]) -> None:
    found = run("--launcher", "local", "--yes")
    assert found.exit_code == 0, found.output
    assert load_cluster("cluster.yaml").num_workers == 2
    assert "checking every node" in found.stderr
    # One node has no links.
    assert probed == []
    assert run("--launcher", "testbed", "--hosts", "3", "--yes", "-o", "bed.yaml").exit_code == 0
    assert [node.name for node in load_cluster("bed.yaml").nodes] == ["host-0", "host-1", "host-2"]
    assert probed == ["bed"]


def test_gpus_are_told_unless_the_backend_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("nvidia0").touch()
    monkeypatch.setattr(operands, "DEVICES", Path())
    assert "this machine has GPUs: backend: nccl trains on them" in run("--launcher", "local", "--yes").stderr
    found = run("--launcher", "local", "--yes", "--backend", "gloo", "--force")
    assert found.exit_code == 0, found.output
    assert load_cluster("cluster.yaml").backend == "gloo"
    assert "GPUs" not in found.stderr
    found = run("--launcher", "local", "--yes", "--backend", "nccl", "--devices", "8", "--force")
    assert load_cluster("cluster.yaml").backend == "nccl"
    assert "for NVLink, write intra_bandwidth: 300 GB/s (or so) in cluster.yaml" in found.stderr


def test_an_allocation_of_slurm_is_proposed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[01-02]")
    found = run("--yes", "--no-check", "--no-probe")
    assert found.exit_code == 0, found.output
    spec = load_cluster("cluster.yaml")
    assert (spec.launcher, [node.host for node in spec.nodes]) == ("slurm", ["n01", "n02"])


def test_a_node_that_is_unfit_is_told(run: Run, findings: list[NodeFinding], probed: list[str]) -> None:
    findings.append(NodeFinding(node="b", severity="error", words="has no torch"))
    found = run("--launcher", "ssh", "--hosts", "a b", "--yes")
    assert found.exit_code == 1
    assert "error: b has no torch" in found.stderr
    assert "autosync cluster check cluster.yaml" in found.stderr
    assert load_cluster("cluster.yaml").launcher == "ssh"
    assert probed == []


def test_one_document_is_printed(run: Run, findings: list[NodeFinding]) -> None:
    findings.append(NodeFinding(node="a", severity="warning", words="has an older autosync"))
    found = run("--launcher", "ssh", "--hosts", "a b", "--yes", "--no-probe", "--json")
    told = json.loads(found.stdout)
    assert (told["schema"], told["output"], told["is_checked"]) == ("autosync.init/1", "cluster.yaml", True)
    assert told["findings"] == [{"node": "a", "severity": "warning", "words": "has an older autosync"}]
    assert told["is_probed"] is False
    assert [node["name"] for node in told["cluster"]["nodes"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "answers", "told"),
    [
        ((), "", "--launcher is missing (the input ended before the question was answered)"),
        ((), "cloud\n", "'cloud' is none of these (one of ssh, slurm, local, testbed)"),
        (("--launcher", "ssh"), "", "--hosts is missing"),
        (("--launcher", "ssh", "--yes"), "", "--hosts is missing (with --yes nothing is asked"),
        (("--launcher", "ssh", "--hosts", "a", "--bandwidth", "fast", "--yes"), "", "--bandwidth: "),
        (("--launcher", "ssh", "--hosts", "a b", "--bandwidth", "1 Gbit/s,", "--yes"), "", "--bandwidth: "),
        (("--launcher", "testbed", "--hosts", "none", "--yes"), "", "--hosts: 'none' is no number of them"),
        (("--launcher", "ssh", "--hosts", "a;b", "--yes"), "", "'a;b' is no node name"),
        (
            ("--launcher", "local", "--hosts", "a b", "--python", "/p", "--yes"),
            "",
            "--hosts and --python with the launcher local (the cluster is this machine alone",
        ),
        (("--bandwidth", "1 Gbit/s"), "local\n", "--bandwidth with the launcher local"),
        (("--launcher", "testbed", "--python", "/p", "--yes"), "", "--python with the launcher testbed"),
    ],
)
def test_mistakes_are_told_and_nothing_is_written(
    run: Run, arguments: tuple[str, ...], answers: str, told: str
) -> None:
    found = run(*arguments, answers=answers)
    assert isinstance(found.exception, InputError)
    assert told in str(found.exception.problems[0])
    assert not Path("cluster.yaml").exists()


def test_a_file_is_replaced_only_by_force(run: Run) -> None:
    Path("cluster.yaml").write_text("mine", encoding="utf-8")
    found = run("--launcher", "local", "--yes")
    assert isinstance(found.exception, InputError)
    assert Path("cluster.yaml").read_text(encoding="utf-8") == "mine"
    assert run("--launcher", "local", "--yes", "--force").exit_code == 0
