"""docs/task.md shows a task that loads and output that is what the commands print."""

import re
from pathlib import Path

import pytest

from autosync.cli import main as cli
from autosync.specs.model_file import shipped_models
from autosync.specs.profile.known_devices import known_devices
from autosync.specs.task import Task

PAGE = (Path(__file__).parents[2] / "docs" / "task.md").read_text(encoding="utf-8")
[EXAMPLE] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
[OUTPUT] = re.findall(r"```text\n\$ autosync profile [^\n]*\n(.*?)```", PAGE, re.DOTALL)
ERRORS = re.findall(r"^error: .*$", PAGE, re.MULTILINE)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("tagger.py")


def test_the_output_shown_is_that_of_the_example(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(EXAMPLE, encoding="utf-8")
    assert cli.run(["profile", "tagger.py", "--times", "computed", "-o", "tagger.yaml"]) == 0
    assert capsys.readouterr().out.startswith(OUTPUT)
    assert Path("tagger.yaml").exists()


@pytest.mark.parametrize(
    ("right", "wrong", "error"),
    [("batch_size=32", "batch_size='32'", 0), ("nn.Linear(64, 256)", "nn.Linear(65, 256)", 1)],
)
def test_the_errors_shown_are_those_of_a_broken_example(
    file: Path, right: str, wrong: str, error: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert right in EXAMPLE
    file.write_text(EXAMPLE.replace(right, wrong), encoding="utf-8")
    assert cli.run(["profile", "tagger.py", "--steps", "1"]) == 2
    # Newer torch begins its message with "addmm: ".
    assert ERRORS[error] in capsys.readouterr().err.replace("addmm: ", "").splitlines()


def test_the_page_has_every_field_model_and_device() -> None:
    table = PAGE.partition("## The fields")[2].partition("\n\n## ")[0]
    fields = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert fields == set(Task.__dataclass_fields__) - {"source", "graphs"}
    models = PAGE.partition("## Model specs")[2]
    assert all(f"`{name}`" in models for name in shipped_models())
    assert all(name.removeprefix("NVIDIA ") in PAGE for name in known_devices())
