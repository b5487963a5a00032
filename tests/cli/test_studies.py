"""`autosync studies` and `autosync show`: earlier tuning runs, from their folders alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autosync.search.planning import plan_tuning
from autosync.testing.trials import FakeService, FakeSteps

if TYPE_CHECKING:
    from conftest import Shell

STUDIES = Path("autosync-studies")
Tune = Callable[..., str]


@pytest.fixture
def tuned(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Tune:
    """Tunes with a service that runs nothing, in which stock DDP takes so many seconds; returns what was printed."""

    def run(study: str, *options: str, stock_seconds: float = 1) -> str:
        service = FakeService({"stock DDP": FakeSteps(seconds=stock_seconds)}, others=FakeSteps(seconds=1))
        monkeypatch.setattr("autosync.search.tuning_plan.TrialService", lambda **_: service)
        command = ("tune", "model.yaml", "--cluster", "local-2", "--proposer", "random", "--study", study, *options)
        assert shell.run(*command) == 0, shell.err
        return shell.out

    return run


@pytest.mark.parametrize("stock_seconds", [1, 2])
def test_the_verdict_is_printed_again_from_the_folder_alone(
    shell: Shell, tuned: Tune, stock_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = tuned("s", "--trials", "3", stock_seconds=stock_seconds)
    assert ("The winner is " in printed) == (stock_seconds == 2)

    def refuse(**_: object) -> None:
        raise AssertionError("nothing is run")

    monkeypatch.setattr("autosync.search.tuning_plan.TrialService", refuse)
    assert shell.run("show", "s") == 0, shell.err
    assert shell.out == printed
    assert shell.json("show", "s") == json.loads((STUDIES / "s" / "summary.json").read_text(encoding="utf-8"))
    # A folder that lies elsewhere, with nothing but its verdict.
    Path("lab/mine").mkdir(parents=True)
    shutil.copy(STUDIES / "s" / "summary.json", "lab/mine")
    assert shell.run("show", "lab/mine") == 0, shell.err
    assert shell.out.splitlines()[:-2] == printed.splitlines()[:-2]
    assert shell.out.splitlines()[-1] == "study:  lab/mine"


def test_studies_are_listed_with_what_they_came_to(shell: Shell, tuned: Tune) -> None:
    assert shell.run("studies") == 0
    assert (shell.out, shell.err.startswith("no studies in autosync-studies; autosync tune ")) == ("", True)
    tuned("fast", "--trials", "2", stock_seconds=2)
    tuned("slow", "--trials", "2")
    settings = {"proposer": "random"}
    plan_tuning(model="model.yaml", cluster="local-2", study="begun", settings=settings).open_study().close()
    (STUDIES / "broken").mkdir()
    shutil.copy(STUDIES / "begun" / "journal.log", STUDIES / "broken")
    (STUDIES / "broken" / "summary.json").write_text("[1", encoding="utf-8")
    found = {one["name"]: one for one in shell.json("studies")}
    assert {name: (one["state"], one["num_trials"]) for name, one in found.items()} == {
        "fast": ("proved", 2),
        "slow": ("proved", 2),
        "begun": ("not finished", 0),
        "broken": ("unreadable", None),
    }
    assert found["fast"]["speedup"] == pytest.approx(2, rel=0.1)
    assert found["fast"]["result"].startswith(f"{found['fast']['speedup']:.2f} times stock DDP (")
    assert (found["slow"]["result"], found["slow"]["speedup"]) == ("stock DDP stays", None)
    assert found["broken"]["result"].startswith("autosync-studies/broken/summary.json:1: ")
    assert [one["changed"] for one in shell.json("studies")] == sorted(one["changed"] for one in found.values())
    assert shell.run("studies", STUDIES) == 0
    assert shell.out.splitlines()[0].split() == ["study", "model", "cluster", "trials", "changed", "result"]
    assert len(shell.out.splitlines()) == 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show", "begin"), "unknown study 'begin' (known: begun); did you mean 'begun'?"),
        (("show", "begun"), "the study begun has no verdict: it is not finished ("),
        (("show", "autosync-studies/begin"), "autosync-studies/begin is no study ("),
        (("show", "model.yaml"), "model.yaml is no study ("),
        (("studies", "autosync-studie"), "autosync-studie is no folder (studies are in a folder); did you mean"),
    ],
)
def test_what_is_no_study_or_has_no_verdict_is_refused(arguments: tuple[str, ...], words: str, shell: Shell) -> None:
    settings = {"proposer": "random"}
    plan_tuning(model="model.yaml", cluster="local-2", study="begun", settings=settings).open_study().close()
    assert shell.run(*arguments) == 2
    assert shell.err.startswith(f"error: {words}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": "autosync.summary/2"}, "newer than this autosync"),
        ({"winner": {"name": "x", "beats_stock_ddp": False}}, "the winner 'x' is no contestant"),
        ({"num_trials": "many"}, "'many' is not allowed here"),
        ({"contests": None}, "contests: "),
    ],
)
def test_a_summary_that_was_changed_is_refused_with_its_place(
    change: dict[str, object], words: str, shell: Shell, tuned: Tune
) -> None:
    tuned("s", "--trials", "1")
    file = STUDIES / "s" / "summary.json"
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **change}), encoding="utf-8")
    assert shell.run("show", "s") == 2
    assert shell.err.startswith(f"error: {file}:1: ")
    assert words in shell.err
