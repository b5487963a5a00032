"""What contributors are told is what CI runs, and prose in Markdown is at most 100 wide."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

MAX_WIDTH = 100
# Pages that are not rewritten yet.
WIDE_PAGES = {
    "docs/gallery.md",
    "docs/preset-matrix.md",
    "docs/proof.md",
    "tools/gallery/introduction.md",
}


def test_the_workflow_runs_what_ci_runs(root: Path) -> None:
    workflow = yaml.safe_load((root / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    steps = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    assert any(".ci/run" in step for step in steps)


def test_the_weekly_workflow_makes_targets_that_are_there(root: Path) -> None:
    workflow = yaml.safe_load((root / ".github/workflows/weekly.yml").read_text(encoding="utf-8"))
    (job,) = workflow["jobs"].values()
    assert any("make ${{ matrix.target }}" in step.get("run", "") for step in job["steps"])
    targets = re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {"fulltest", "scripts-suite"} <= set(job["strategy"]["matrix"]["target"]) <= set(targets)


def test_pre_commit_runs_the_makefiles_commands(root: Path) -> None:
    config = yaml.safe_load((root / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    entries = {hook["entry"] for repository in config["repos"] for hook in repository["hooks"]}
    assert entries == {"make lint", "make typing"}


def test_issue_forms_have_what_github_asks_for(root: Path) -> None:
    forms = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in (root / ".github/ISSUE_TEMPLATE").iterdir()}
    assert {"bug", "wrong_result", "question"} <= forms.keys()
    for name in ("bug", "wrong_result", "question"):
        assert {"name", "description", "body"} <= forms[name].keys()
        fields = [field for field in forms[name]["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len(fields)


def test_every_command_and_path_of_the_page_is_there(root: Path) -> None:
    page = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for words in re.findall(r"\bmake ([a-z -]+)[`\n ]", page):
        assert set(words.split()) <= targets or words.split()[0] in targets, words
    for path in re.findall(r"\b(?:benchmarks|tests|docs|tools)/[\w/.]+", page):
        assert (root / path.rstrip(".")).exists(), path


def test_every_benchmark_is_in_the_readme_of_its_folder(root: Path) -> None:
    index = (root / "benchmarks/README.md").read_text(encoding="utf-8")
    for folder in sorted(path for path in (root / "benchmarks").iterdir() if path.is_dir() and path.name[0] != "_"):
        assert f"({folder.name}/README.md)" in index, folder.name
        page = (folder / "README.md").read_text(encoding="utf-8")
        for path in folder.glob("*.py"):
            if "parser_of(__doc__)" in path.read_text(encoding="utf-8"):
                assert f"benchmarks/{folder.name}/{path.name}" in page, path


def test_benchmarks_import_what_is_there(root: Path) -> None:
    """Most of them are never run by a test."""
    for path in sorted((root / "benchmarks").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "benchmarks":
                place = root.joinpath(*str(node.module).split("."))
                names = [place.with_suffix(".py"), *(place / f"{alias.name}.py" for alias in node.names)]
                assert any(name.exists() for name in names), f"{path}: {node.module}"


@pytest.fixture(scope="module")
def pages(root: Path) -> dict[str, str]:
    """Every Markdown file that git tracks."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=root, capture_output=True, text=True, check=False
    ).stdout.split()
    if not listed:
        pytest.skip("no git checkout")
    return {name: (root / name).read_text(encoding="utf-8") for name in listed if (root / name).exists()}


def test_prose_is_not_too_wide(pages: dict[str, str]) -> None:
    wide = {name: list(_wide_lines(text)) for name, text in pages.items()}
    assert not {name: lines for name, lines in wide.items() if lines and name not in WIDE_PAGES}


def _wide_lines(text: str) -> Iterator[int]:
    """The numbers of lines of prose that are too wide; tables, code and lines without spaces to break at may be."""
    is_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        is_prose = not is_code and not line.startswith(("    ", "|", "#")) and not line.lstrip().startswith(("![", "<"))
        if is_prose and len(line) > MAX_WIDTH and " " in line.strip()[:MAX_WIDTH].lstrip("-* "):
            yield number


def test_wide_prose_is_noticed() -> None:
    wide = "word " * 30
    assert list(_wide_lines(f"{wide}\n\n```\n{wide}\n```\n| {wide} |\n{wide}\n")) == [1, 7]
