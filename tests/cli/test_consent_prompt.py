"""Programs and machines that a received file names are listed, and the user is asked first. A dry run runs none."""

from __future__ import annotations

import json
import os
import pty
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import load_cluster, save_cluster
from autosync.specs.model_file import load_model
from autosync.strategy.bundle import save_bundle
from autosync.strategy.presets import build_preset
from autosync.testing.trials import FakeService, FakeSteps

if TYPE_CHECKING:
    from conftest import Shell

TASKS = Path(__file__).parents[1] / "search" / "tiny.py"
HERE = ClusterSpec(
    name="here", nodes=(Node(name="n0", host="localhost", bandwidth_out=1e8, bandwidth_in=1e8),), python="./evil"
)

Received = Callable[[], None]


@pytest.fixture(autouse=True)
def forgetful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is remembered to begin with, and trials run nothing."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("MARK", str(tmp_path / "it-ran"))
    fake = FakeService({}, others=FakeSteps(seconds=0.1, noise=0.002))
    monkeypatch.setattr("autosync.search.tuning_plan.TrialService", lambda **_: fake)


@pytest.fixture
def received(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Received:
    """From here on this is another user's machine, to which the files were sent."""

    def move() -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))

    return move


@pytest.fixture
def bundle(shell: Shell) -> str:
    """A bundle whose cluster names a Python, which leaves a mark where it is run."""
    del shell
    evil = Path("evil")
    evil.write_text('#!/bin/sh\ntouch "$MARK"\n')
    evil.chmod(0o755)
    model = load_model("model.yaml")
    save_bundle("best.yaml", bundled(build_preset("ddp", model, HERE), model, HERE))
    return "best.yaml"


def _has_run() -> bool:
    return Path(os.environ["MARK"]).exists()


def _forget() -> None:
    Path(os.environ["MARK"]).unlink(missing_ok=True)


def test_a_python_that_a_bundle_names_is_not_run_unasked(shell: Shell, bundle: str) -> None:
    assert shell.run("launch", bundle, "--", "train.py") == 2
    told = f"cluster.python: ranks would run this Python (local): {Path('evil').absolute()} on this machine"
    assert f"error: best.yaml:1: {told} (" in shell.err
    assert "--trust" in shell.err
    assert not _has_run()


def test_a_dry_run_runs_nothing_and_shows_what_would_be_asked(shell: Shell, bundle: str) -> None:
    assert shell.run("launch", bundle, "--dry-run", "--", "train.py") == 0, shell.err
    _, _, asked = shell.out.partition("would be asked for first, or takes --trust:\n")
    assert asked.startswith("  best.yaml: cluster.python: ranks would run this Python (local): ")
    assert shell.run("launch", bundle, "--dry-run", "--json", "--", "train.py") == 0
    assert [one["place"] for one in json.loads(shell.out)["named"]] == ["cluster.python"]
    assert not _has_run()


def test_with_trust_it_runs(shell: Shell, bundle: str) -> None:
    assert shell.run("launch", bundle, "--trust", "--", "train.py") == 0, shell.err
    assert _has_run()


def test_a_cluster_that_the_user_names_is_run_as_it_is(shell: Shell, bundle: str) -> None:
    save_cluster("mine.yaml", HERE)
    assert shell.run("launch", bundle, "--cluster", "mine.yaml", "--", "train.py") == 0, shell.err
    assert _has_run()


def test_a_bundle_that_names_nothing_is_launched_without_a_question(shell: Shell, bundle: str) -> None:
    model = load_model("model.yaml")
    plain = replace(HERE, python=None)
    save_bundle("plain.yaml", bundled(build_preset("ddp", model, plain), model, plain))
    assert shell.run("launch", "plain.yaml", "--", "sh", "-c", 'touch "$MARK"') == 0, shell.err
    assert _has_run()
    assert bundle == "best.yaml"


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("\x04", 1)])
def test_at_a_terminal_the_user_is_asked(answer: str, code: int, bundle: str) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-P", "-m", "autosync.cli", "launch", bundle, "--", "train.py"]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        while b"[y/N]" not in said:
            said += os.read(ours, 4096)
        assert b"best.yaml: cluster.python: ranks would run this Python (local)" in said
        assert not _has_run()
        os.write(ours, answer.encode())
        assert process.wait(60) == code
        while code and b"nothing was run: it is not trusted" not in said:
            said += os.read(ours, 4096)
    os.close(ours)
    assert _has_run() is (code == 0)


@pytest.fixture
def study(shell: Shell) -> str:
    """A study that this user began, of a task that leaves a mark wherever it is loaded."""
    Path("model.py").write_text(f"import os\nopen(os.environ['MARK'], 'w').close()\n{TASKS.read_text()}")
    save_cluster("pair.yaml", replace(load_cluster("local-2"), python=f"{sys.executable}"))
    arguments = ("model.py", "--cluster", "pair.yaml", "--trials", "2", "--effort", "quick", "--study", "s")
    assert shell.run("tune", *arguments) == 0, shell.err
    _forget()
    return "s"


def test_ones_own_study_goes_on_without_a_question(shell: Shell, study: str) -> None:
    assert shell.run("tune", "--resume", study) == 0, shell.err
    assert _has_run()


def test_a_study_from_elsewhere_runs_nothing_unasked(shell: Shell, study: str, received: Received) -> None:
    received()
    assert shell.run("tune", "--resume", study) == 2
    told = f"study.json:1: task: this Python file would be run: {Path('model.py').absolute()}"
    assert told in shell.err
    assert not _has_run()
    assert shell.run("tune", "--resume", study, "--dry-run") == 0, shell.err
    assert f"study.json: task: this Python file would be run: {Path('model.py').absolute()}" in shell.out
    assert not _has_run()
    assert shell.run("tune", "--resume", study, "--trust") == 0, shell.err
    assert _has_run()


def test_a_study_may_be_moved_but_not_made_to_run_something_else(shell: Shell, study: str) -> None:
    settings = Path("autosync-studies", study, "study.json")
    Path("other.py").write_text(Path("model.py").read_text())
    fields = json.loads(settings.read_text())
    settings.write_text(json.dumps({**fields, "task": "other.py"}))
    assert shell.run("tune", "--resume", study) == 2
    assert "other.py" in shell.err
    cluster = Path("autosync-studies", study, "cluster.yaml")
    settings.write_text(json.dumps(fields))
    cluster.write_text(cluster.read_text().replace(sys.executable, "/evil/python"))
    assert shell.run("tune", "--resume", study) == 2
    assert "cluster.yaml:1: python: ranks would run this Python (local): /evil/python" in shell.err
    assert not _has_run()


def test_a_bundle_of_ones_own_is_launched_without_a_question(shell: Shell, study: str) -> None:
    bundle = Path("autosync-studies", study, "best.yaml")
    bundle.write_text(bundle.read_text().replace(sys.executable, str(Path("python").absolute())))
    # A link would be a Python without the environment's packages.
    Path("python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    Path("python").chmod(0o700)
    assert shell.run("launch", bundle, "--", "-m", "this") == 2
    save_cluster("pair.yaml", replace(load_cluster("local-2"), python=str(Path("python").absolute())))
    arguments = ("model.py", "--cluster", "pair.yaml", "--trials", "1", "--effort", "quick", "--study", "t")
    assert shell.run("tune", *arguments) == 0, shell.err
    # The ranks run without a question, and say that the module does not train.
    assert shell.run("launch", "autosync-studies/t/best.yaml", "--", "-m", "this") == 1
    assert "the bundle was not used" in shell.err


def _elsewhere(url: str) -> None:
    """A study folder that says that its trials are in a storage elsewhere."""
    folder = Path("autosync-studies", "far")
    folder.mkdir(parents=True)
    settings = {"schema": "autosync.study/1", "name": "far", "task": "resnet50", "storage": url, "tuner": "x"}
    (folder / "study.json").write_text(json.dumps(settings))
    (folder / "model.yaml").write_text(Path("model.yaml").read_text())
    (folder / "cluster.yaml").write_text(Path("cluster.yaml").read_text())


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("export", "far", "-o", "r.jsonl"), "--trust"),
        (("export", "-o", "r.jsonl"), "--trust"),
        (("dataset", "stats", "autosync-studies/far"), "autosync export --trust"),
        (("tune", "--replay", "far"), "--trust"),
        (("tune", "--replay", "far", "--dry-run"), "--trust"),
        (("tune", "--resume", "far"), "--trust"),
        (("tune", "model.yaml", "--cluster", "local-2", "--prior", "autosync-studies/far"), "--trust"),
    ],
)
def test_a_storage_that_a_study_names_is_not_contacted_unasked(
    arguments: tuple[str, ...], hint: str, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    _elsewhere("postgresql://evil.example/x")
    opened: list[str] = []
    for place in ("autosync.datasets.journal.open_storage", "autosync.search.study.open_storage"):
        monkeypatch.setattr(place, lambda url, **_: opened.append(url))
    assert shell.run(*arguments) == 2
    assert "storage: this storage would be" in shell.err
    assert "postgresql://evil.example/x" in shell.err
    assert hint in shell.err
    assert opened == []


def test_a_file_that_a_study_names_is_not_written_to_unasked(shell: Shell) -> None:
    Path("notes.txt").write_text("mine, without an end of line")
    _elsewhere(f"journal:{Path('notes.txt').absolute()}")
    assert shell.run("tune", "--resume", "far", "--trials", "1") == 2
    assert "study.json:1: storage: this storage would be written to: journal:" in shell.err
    assert Path("notes.txt").read_text() == "mine, without an end of line"


@pytest.mark.parametrize("name", ["best.yaml", "summary.json", "logs", "lock"])
def test_a_link_that_a_study_has_is_not_written_through_unasked(name: str, shell: Shell, study: str) -> None:
    folder, victim = Path("autosync-studies", study), Path("victim").absolute()
    victim.write_text("mine")
    if name == "logs":
        victim.unlink()
        victim.mkdir()
    way = folder / name
    if way.exists():
        way.unlink()
    way.symlink_to(victim)
    assert shell.run("tune", "--resume", study) == 2
    assert f"{name}: this would be written to, through a link: {victim}" in shell.err
    assert victim.is_dir() or victim.read_text() == "mine"
    # One that stays within the folder is nobody else's.
    way.unlink()
    (folder / "inside").write_text("")
    way.symlink_to("inside")
    assert shell.run("tune", "--resume", study, "--dry-run") == 0, shell.err
    assert "through a link" not in shell.out
