"""Of any file, a command ends with exit 0, or with 2 and mistakes at its lines: benchmarks/fuzz_files.py."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fuzz_files.py"
KINDS = {"cluster", "resource_spec", "model", "strategy", "bundle"}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_files", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz_files"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_mutants_of_every_kind_of_file(count: int) -> None:
    command = [sys.executable, SCRIPT, "--count", str(count), "--seed", "20261121"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    result = json.loads(done.stdout)
    assert result["kinds"].keys() == KINDS
    assert [failure for tally in result["kinds"].values() for failure in tally["failures"]] == []
    assert done.returncode == 0
    for tally in result["kinds"].values():
        assert tally["count"] == count
        assert min(tally["exits"]["0"], tally["exits"]["2"]) > count // 25, tally["exits"]


def test_all_good_files_are_good(script: ModuleType, tmp_path: Path) -> None:
    for kind, files in script.originals(tmp_path).items():
        different = list(dict.fromkeys(files))
        for number, original in enumerate(different):
            # Each file by one of its commands, in turn.
            command = original.commands[number % len(original.commands)]
            path = tmp_path / f"{kind}{original.ending}"
            assert script.try_file(original.text.encode(), command, path)[:2] == (0, []), command


@pytest.mark.parametrize(
    ("printed", "code", "why"),
    [
        ("Traceback (most recent call last):\n", 2, "no line of the right form"),
        ("error: no file is named (a rule)\n", 2, "no line of the right form"),
        ("error: {path}:1: no rule\n", 2, "no line of the right form"),
        ("error: {path}:4: what (a rule)\n", 2, "a line that the file of 3 lines does not have"),
        ("error: {path}:1: what (a rule)\nmore\n", 2, "no line of the right form"),
        ("error: other.yaml:1: what (a rule)\n", 2, "another file than was handed in"),
        ("error: {path}:1: \x1b[31m (a rule)\n", 2, "what a terminal would obey"),
        ("error: {path}:1: what (a rule)\n", 1, "exit 1"),
        ("a warning\n", 0, "exit 0 with stderr"),
    ],
)
def test_what_is_not_right_is_found(
    *, printed: str, code: int, why: str, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.yaml"

    def run(arguments: list[str]) -> int:
        sys.stderr.write(printed.format(path=path))
        return code

    monkeypatch.setattr(script, "run", run)
    with pytest.raises(ValueError, match=why):
        script.try_file(b"a\nb\n", ("cluster", "show", "FILE"), path)


def test_what_leaves_by_another_road_is_found(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(arguments: list[str]) -> int:
        raise SystemExit(2)

    monkeypatch.setattr(script, "run", run)
    with pytest.raises(ValueError, match="raised SystemExit"):
        script.try_file(b"", ("cluster", "show", "FILE"), tmp_path / "c.yaml")
