"""`make test-versions` runs what the metadata promises."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

CLASSIFIERS = [
    "Programming Language :: Python :: 3",
    *(f"Programming Language :: Python :: 3.{n}" for n in (11, 12, 13)),
]


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")
    return importlib.import_module("versions")


def _metadata(torch: str) -> dict[str, Any]:
    return {"project": {"classifiers": CLASSIFIERS, "dependencies": ["numpy>=2", "torchvision>=0.2", torch]}}


def test_the_ends_of_the_range_and_the_pin_are_run_on_two_pythons(versions: ModuleType) -> None:
    pairs = versions.promised_pairs(_metadata("torch>=2.6,<2.16"), "numpy==2.4.6\ntorch==2.13.0\n")
    assert {pair.name: pair.torch for pair in pairs} == {
        "3.11/oldest": "torch==2.6",
        "3.13/oldest": "torch==2.6",
        "3.11/pinned": "torch==2.13.0",
        "3.13/pinned": "torch==2.13.0",
        "3.11/newest": "torch>=2.6,<2.16",
        "3.13/newest": "torch>=2.6,<2.16",
    }


def test_one_release_is_run_once(versions: ModuleType) -> None:
    pairs = versions.promised_pairs(_metadata("torch>=2.13,<2.16"), "torch==2.13.0\n")
    assert [pair.release for pair in pairs] == ["pinned", "pinned", "newest", "newest"]


def test_without_a_pin_it_ends(versions: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"versions: no .*torch=="):
        versions.promised_pairs(_metadata("torch>=2.13"), "numpy==2.4.6\n")
