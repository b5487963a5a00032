"""The two models of a step know the shared room, and neither knows the other."""

import ast
from pathlib import Path

import pytest

import autosync.simulators

ROOM = Path(autosync.simulators.__file__).parent


def _imported(folder: str) -> set[str]:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOM / folder).glob("*.py")]
    modules = [node.module for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    prefix = "autosync.simulators."
    return {module.removeprefix(prefix).split(".")[0] for module in modules if module and module.startswith(prefix)}


@pytest.mark.parametrize(
    ("folder", "strangers"),
    [
        ("analytical", {"timeline", "features", "learned", "large_clusters", "catalogue"}),
        ("timeline", {"analytical", "features", "learned", "large_clusters", "catalogue"}),
        ("shared", {"analytical", "timeline", "features", "learned", "large_clusters", "catalogue"}),
    ],
)
def test_models_of_a_step_share_one_room(folder: str, strangers: set[str]) -> None:
    found = _imported(folder)
    assert "shared" in found
    assert not found & strangers
