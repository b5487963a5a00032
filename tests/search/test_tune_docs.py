"""docs/tune.md matches the command, the files of a study and the counts of the code; its dry run is real."""

import re
import sys
from pathlib import Path

import pytest

from autosync.cli import main
from autosync.cli.tune import tune
from autosync.datasets.schema import FAILURE_KINDS
from autosync.search.measurement_effort import EFFORTS, NORMAL_EFFORT, QUICK_EFFORT
from autosync.search.study_folder import StudyFolder

PAGE = (Path(__file__).parents[2] / "docs" / "tune.md").read_text(encoding="utf-8")
SENTENCES = " ".join(PAGE.split())


def test_every_option_is_told_and_exists() -> None:
    options = {name for parameter in tune.params for name in parameter.opts if name.startswith("--")}
    spoken_of = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", PAGE))
    assert spoken_of == options - {"--output"}
    assert " -o best.yaml" in PAGE


def test_the_table_of_files_is_the_folder() -> None:
    folder = StudyFolder(Path("NAME"))
    files = (folder.settings, folder.journal, folder.model, folder.cluster, folder.best, folder.summary)
    for path in files:
        assert f"`{path.name}`" in PAGE
    assert f"`{folder.logs.name}/ranks-N/`" in PAGE


def test_every_kind_of_failure_is_told() -> None:
    assert all(f"| `{kind}` |" in PAGE for kind in FAILURE_KINDS)


def test_the_efforts_are_those_of_the_code() -> None:
    rows = [
        f"| `{name}` | {effort.trial.min_steps} to {effort.trial.max_steps} steps, "
        f"{effort.trial.budget_seconds:g} s at most | {effort.proof.num_steps} steps of the fastest "
        f"in {effort.proof.num_rounds} rounds, {effort.proof.budget_seconds:g} s at most |"
        for name, effort in EFFORTS.items()
    ]
    assert "\n".join(rows) in PAGE
    early, quick = NORMAL_EFFORT.early_proof, QUICK_EFFORT.early_proof
    assert early.num_steps == quick.num_steps
    words = f"A proof before the trials has {early.num_steps} steps of the fastest"
    assert f"{words}, {early.budget_seconds:g} s at most (`quick`: {quick.budget_seconds:g} s)" in SENTENCES
    shares = [f"{effort.trial.interval_share:.0%}".replace("%", " %") for effort in (NORMAL_EFFORT, QUICK_EFFORT)]
    assert f"narrower than {shares[0]} of it (`quick`: {shares[1]})" in SENTENCES
    assert NORMAL_EFFORT.num_finalists == 2
    assert "The two fastest of ours" in SENTENCES
    assert (NORMAL_EFFORT.num_predicted, QUICK_EFFORT.num_predicted) == (4, 2)
    assert "the four strategies with the shortest predicted times go straight to the proof" in SENTENCES
    assert "proof (two with `--effort quick`)" in SENTENCES


def test_the_dry_run_is_what_is_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (shown,) = re.findall(r"```text\n\$ autosync (tune [^\n]*--dry-run)\n(.*?)```", PAGE, re.DOTALL)
    command, output = shown
    assert main.run(command.split()) == 0
    assert capsys.readouterr().out.replace(sys.executable, "python") == output
