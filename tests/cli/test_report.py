"""`autosync report`, and the page that `autosync tune` writes into its study."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autosync.testing.trials import FakeService, FakeSteps

if TYPE_CHECKING:
    from conftest import Shell

STUDIES = Path("autosync-studies")


@pytest.fixture
def tuned(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Tunes with a service that runs nothing, in which stock DDP takes twice the time of all others."""

    def run(study: str) -> None:
        service = FakeService({"stock DDP": FakeSteps(seconds=2)}, others=FakeSteps(seconds=1))
        monkeypatch.setattr("autosync.search.tuning_plan.TrialService", lambda **_: service)
        command = ("tune", "model.yaml", "--cluster", "local-2", "--proposer", "random", "--study", study)
        assert shell.run(*command, "--trials", "3") == 0, shell.err

    return run


def test_tuning_writes_the_page_of_its_study(shell: Shell, tuned: Callable[[str], None]) -> None:
    tuned("s")
    assert shell.err.splitlines()[-1] == "wrote autosync-studies/s/report.html"
    page = (STUDIES / "s" / "report.html").read_text(encoding="utf-8")
    assert "50 % less time per step than stock DDP" in page
    assert shell.run("report", "s", "-o", "page.html") == 0, shell.err
    assert Path("page.html").read_text(encoding="utf-8") == page
    assert (shell.out, shell.err.splitlines()[-1]) == ("", "wrote page.html")


def test_a_page_of_several_studies(shell: Shell, tuned: Callable[[str], None]) -> None:
    tuned("a")
    tuned("b")
    told = shell.json("report", "a", STUDIES / "b", "a", "-o", "both.html")
    assert told == {"schema": "autosync.report/1", "output": "both.html", "studies": ["a", "b"]}
    page = Path("both.html").read_text(encoding="utf-8")
    assert page.count("<article") == 2


def test_mistakes_are_told_before_anything_is_written(shell: Shell, tuned: Callable[[str], None]) -> None:
    tuned("s")
    Path("page.html").write_text("mine", encoding="utf-8")
    assert shell.run("report", "s", "-o", "page.html") == 2
    assert "page.html" in shell.err
    assert Path("page.html").read_text(encoding="utf-8") == "mine"
    assert shell.run("report", "s", "-o", "page.html", "--force") == 0
    assert shell.run("report", "t", "-o", "other.html") == 2
    assert "t" in shell.err
    (STUDIES / "s" / "summary.json").unlink()
    assert shell.run("report", "s", "-o", "other.html") == 2
    assert "the study s has no verdict: it is not finished" in shell.err
    assert not Path("other.html").exists()


def test_trials_that_cannot_be_read_are_left_out_and_named(shell: Shell, tuned: Callable[[str], None]) -> None:
    tuned("s")
    with (STUDIES / "s" / "journal.log").open("a", encoding="utf-8") as journal:
        journal.write('{"op_code"')
    assert shell.run("report", "s", "-o", "page.html") == 0, shell.err
    assert "left out: autosync-studies/s/journal.log:" in shell.err
    assert "breaks off" in Path("page.html").read_text(encoding="utf-8")


def test_a_storage_elsewhere_is_not_contacted_unasked(shell: Shell, tuned: Callable[[str], None]) -> None:
    tuned("s")
    shutil.copytree(STUDIES / "s", "received")
    Path("received/journal.log").unlink()
    settings = json.loads(Path("received/study.json").read_text(encoding="utf-8"))
    settings["storage"] = "postgresql://db.example/tuning"
    Path("received/study.json").write_text(json.dumps(settings), encoding="utf-8")
    assert shell.run("report", "received", "-o", "page.html") == 2
    assert "db.example" in shell.err
    assert not Path("page.html").exists()
