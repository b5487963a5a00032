"""The commands of the pages under "Start here" run as they are written, and print what the pages show.

Measured outputs differ from run to run, and so does what is found in them. So the lines that every output of a command
has must be in the output and on all pages, by their beginnings.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.helpers.shown_commands import ROOT, run_autosync, shapes, shown_commands

FRAMEWORKS = {"torchrun": "torch", "lightning": "lightning", "accelerate": "accelerate", "trainer": "transformers"}
COMMANDS = ("doctor", "tune", "launch")
LIMITS = {"doctor": ("--steps", "4"), "tune": ("--trials", "2"), "launch": ()}
"""Options that shorten a command."""
BEGINNINGS = {
    "doctor": ("A step of stock DDP takes", "Next: ", "also of the step", "Below "),
    "tune": (
        "The winner",
        "what it does:",
        "how it runs:",
        "stock DDP:",
        "the winner:",
        "what is left:",
        "How to use it:",
        "bundle:",
        "study:",
        "tuning took",
    ),
    "launch": ("host-",),
}
"""How lines begin that every output of a command has."""
NO_GAIN = "Nothing tried is faster than stock DDP for certain: keep it."


def _of(framework: str) -> dict[str, str]:
    """The output that a framework's page shows for each command."""
    shown = shown_commands(f"docs/frameworks/{framework}.md")
    return {one.words[1]: one.output for one in shown}


def _missing(command: str, output: str) -> set[str]:
    """The beginnings that no line of the output has."""
    lines = shapes(output)
    return {begin for begin in BEGINNINGS[command] if not any(line.startswith(begin) for line in lines)}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_page_of_a_framework_shows_the_whole_way(framework: str) -> None:
    shown = _of(framework)
    assert tuple(shown) == COMMANDS
    assert all(shown.values())


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("command", COMMANDS)
def test_the_pages_have_the_lines_that_every_output_has(command: str, framework: str) -> None:
    assert _missing(command, _of(framework)[command]) == set()


def test_every_page_is_tested() -> None:
    """By this file, or by the tests of tasks and of cluster files."""
    (start, *_) = yaml.safe_load(re.sub(r"!!python\S+", "", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))["nav"]
    listed = [one for entry in start["Start here"] for one in _paths(entry)]
    frameworks = {f"docs/frameworks/{name}.md" for name in FRAMEWORKS}
    others = {f"docs/{name}.md" for name in ("task", "cluster", "tune", "report", "launch", "python")}
    assert set(listed) == {"README.md", *frameworks, *others}


def _paths(entry: str | dict[str, list[str]]) -> list[str]:
    return [entry] if isinstance(entry, str) else [path for group in entry.values() for path in group]


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_commands_of_a_framework_run(framework: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(FRAMEWORKS[framework]) is None:
        pytest.skip(f"{FRAMEWORKS[framework]} is not installed: make scripts-suite installs it")
    if os.geteuid() != 0:
        pytest.skip("the pages emulate hosts, which needs root")
    script = (ROOT / "examples" / "scripts" / f"with_{framework}.py").read_text(encoding="utf-8")
    for one in shown_commands(f"docs/frameworks/{framework}.md"):
        command = one.words[1]
        # The script ends by itself where it is only launched.
        steps = 20 if command == "launch" else 100_000
        (tmp_path / "train.py").write_text(script.replace("default=100", f"default={steps}"), encoding="utf-8")
        # Lightning and transformers import torchvision, whose wheel may lack operators beside a torch without CUDA.
        site = str(ROOT / "tests" / "script_suite" / "site")
        done = run_autosync(one.with_options(*LIMITS[command]), tmp_path, PYTHONPATH=site)
        assert done.returncode == 0, (done.stdout, done.stderr)
        missing = _missing(command, done.stdout)
        # Few trials may find nothing that is faster for certain; then there is no winner to tell of.
        assert not missing or (NO_GAIN in done.stdout and "stock DDP:" not in missing), (missing, done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_commands_of_tuning_and_its_report_run(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copy(ROOT / "examples" / "transformer.py", tmp_path / "model.py")
    (tmp_path / "cluster.yaml").write_text((ROOT / "configs/clusters/local-2.yaml").read_text(), encoding="utf-8")
    first, dry = shown_commands("docs/tune.md")
    assert "--dry-run" in dry.words
    done = run_autosync(first.with_options(), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "stock DDP" in done.stdout
    assert (tmp_path / "best.yaml").exists()
    for words in _indented("docs/tune.md", "autosync tune"):
        # Fewer trials than on the page.
        done = run_autosync([*words, "--trials", "9"], tmp_path)
        assert done.returncode == 0, done.stderr
    for name in ("resnet50-4-hosts-20260131-120000", "monday", "tuesday"):
        shutil.copytree(tmp_path / "autosync-studies" / "demo", tmp_path / "autosync-studies" / name)
    again, both, compared, diagnosed = shown_commands("docs/report.md")
    for one, limits in (
        (again, ()),
        (both, ()),
        (compared, ("--steps", "12", "--budget", "30s")),
        (diagnosed, ("--steps", "4")),
    ):
        done = run_autosync(one.with_options(*limits), tmp_path)
        assert done.returncode == 0, done.stderr
        page = tmp_path / one.words[one.words.index("-o") + 1]
        assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def _indented(page: str, begin: str) -> list[list[str]]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [line.split() for line in re.findall(rf"^    ({begin} .*)$", text, re.MULTILINE)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_check_of_nodes_is_that_of_the_page(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("the page emulates hosts, which needs root")
    shutil.copy(ROOT / "examples" / "scripts" / "with_torchrun.py", tmp_path / "train.py")
    [one] = [one for one in shown_commands("docs/launch.md") if one.words[1] == "cluster"]
    done = run_autosync(one.words, tmp_path)
    assert done.returncode == 0, done.stderr
    assert shapes(done.stdout) >= {line for line in shapes(one.output) if "+cpu" not in line}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_code_of_the_page_about_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code.replace("num_trials=8", "num_trials=2"), "docs/python.md", "exec"), names)
    assert len(names["tuned"].to_frame()) >= 2  # type: ignore[attr-defined]
