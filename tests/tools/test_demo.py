"""`make demo`: an emulated cluster where the machine allows one, else this machine, with the reason."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from autosync import testbed
from autosync.cli import main
from autosync.errors import OperationError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("demo", ROOT / "tools" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were run; none does anything."""
    ran: list[list[str]] = []

    def run(arguments: Any, interrupts: Any = ()) -> int:
        ran.append(list(arguments))
        return 0

    monkeypatch.setattr(main, "run", run)
    return ran


class Bed:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def test_on_an_emulated_cluster(
    demo: ModuleType, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(testbed, "up", lambda _: Bed())
    assert demo.demo() == 0
    assert commands == [list(demo.EMULATED)]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("$ autosync tune gpt_mini --cluster 2-hosts-2-ranks ")
    assert lines[-1] == f"The report, to open in a browser: {Path.cwd()}/autosync-studies/demo/report.html"


def test_elsewhere_with_the_reason(
    demo: ModuleType, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(_: object) -> None:
        raise OperationError("no testbed can be made here: ip is not installed (package iproute2)")

    monkeypatch.setattr(testbed, "up", refused)
    assert demo.demo() == 0
    assert commands == [list(demo.LOCAL)]
    told = capsys.readouterr().out
    assert told.startswith("No cluster can be emulated here: no testbed can be made here: ip is not installed")
    assert "report.html" in told.splitlines()[-1]


def test_a_failure_names_no_report(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(testbed, "up", lambda _: Bed())
    monkeypatch.setattr(main, "run", lambda _: 1)
    assert demo.demo() == 1
    assert "report.html" not in capsys.readouterr().out
