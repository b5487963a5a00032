"""docs/tune.md names what the command has, and what a study folder holds."""

import re
from pathlib import Path

from autosync.cli.tune import tune
from autosync.datasets.schema import FAILURE_KINDS
from autosync.search import guarantee, trial
from autosync.search.study import StudyFolder
from autosync.search.tune import NUM_FINALISTS

PAGE = (Path(__file__).parents[2] / "docs" / "tune.md").read_text(encoding="utf-8")


def test_every_option_of_which_it_speaks_exists() -> None:
    options = {name for parameter in tune.params for name in parameter.opts}
    spoken_of = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", PAGE))
    assert spoken_of <= options
    assert {"--trials", "--budget", "--seed", "--study", "--trial-timeout", "--json", "--force"} <= spoken_of


def test_the_table_of_files_is_the_folder() -> None:
    folder = StudyFolder(Path("NAME"))
    files = (folder.settings, folder.journal, folder.model, folder.cluster, folder.best, folder.summary)
    for path in files:
        assert f"`{path.name}`" in PAGE
    assert f"`{folder.logs.name}/ranks-N/`" in PAGE


def test_every_kind_of_failure_is_told() -> None:
    assert all(f"| `{kind}` |" in PAGE for kind in FAILURE_KINDS)


def test_the_counts_are_those_of_the_code() -> None:
    assert f"{trial.NUM_WARMUP_STEPS} steps to warm up, {trial.NUM_STEPS} measured" in PAGE
    assert f"{guarantee.NUM_BLOCKS} blocks of {guarantee.NUM_STEPS} steps" in PAGE
    assert NUM_FINALISTS == 2
