"""`autosync emit`: a Python file that runs without autosync, fields for programs, and refusals with a reason."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from autosync.cli import main


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    for preset, *options in (("ddp_cap", "--option", "cap_bytes=8 MiB"), ("ps",)):
        command = ["strategy", "build", preset, "resnet50", "--cluster", "4-hosts", *options, "-o", f"{preset}.yaml"]
        assert main.run(command) == 0
    capsys.readouterr()
    return tmp_path


FOR = ["--model", "resnet50", "--cluster", "4-hosts"]


def test_a_python_file_that_needs_no_autosync(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["emit", "ddp_cap.yaml", "--to", "ddp", *FOR]) == 0
    printed = capsys.readouterr().out
    tree = ast.parse(printed)
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert modules == ["torch.nn.parallel"]
    assert '"bucket_cap_mb": 8,' in printed
    assert main.run(["emit", "ddp_cap.yaml", "--to", "ddp", *FOR, "-o", "tuned.py"]) == 0
    assert (built / "tuned.py").read_text() == printed
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith("wrote tuned.py: 11 buckets of ")
    assert main.run(["emit", "ddp_cap.yaml", "--to", "ddp", *FOR, "-o", "tuned.py"]) == 2
    assert "tuned.py exists" in capsys.readouterr().err


@pytest.mark.usefixtures("built")
def test_fields_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["emit", "ddp_cap.yaml", "--to", "ddp", *FOR, "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert fields["schema"] == "autosync.ddp-settings/1"
    assert fields["arguments"] == {"bucket_cap_mb": 8, "gradient_as_bucket_view": True}
    assert (fields["comm_hook"], fields["frozen"], fields["least_torch"]) == (None, [], "2.6")
    assert sum(len(bucket["variables"]) for bucket in fields["buckets"]) == 161


@pytest.mark.usefixtures("built")
def test_a_rule_is_stated_once_for_several_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["strategy", "build", "fsdp", FOR[1], *FOR[2:], "-o", "fsdp.yaml"]) == 0
    capsys.readouterr()
    assert main.run(["emit", "fsdp.yaml", "--to", "ddp", *FOR]) == 2
    told = capsys.readouterr().err
    assert told.count("what stock DDP does") == told.count("error: ") == 1
    assert "overlap the next forward pass" in told
    assert "is synchronised by sharded" in told


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ps.yaml", *FOR], "ps.yaml:1: stock DDP cannot do this: fc.bias (and 160 more) is synchronised by parameter"),
        (["ps.yaml"], "ps.yaml names no model and no cluster"),
        (["ps.yaml", "--model", "resnet50"], "--cluster is missing"),
        (["ps.yaml", "--cluster", "4-hosts"], "--model is missing"),
        (["none.yaml"], "none.yaml: cannot be read: No such file"),
    ],
)
def test_refusals(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["emit", "--to", "ddp", *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"error: {words}")
