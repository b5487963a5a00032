"""Imports go one way: a room knows the rooms below it and none beside or above it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

# From the bottom up. Rooms on one line do not know each other; the base is one room in several files.
_BASE = {
    "errors",
    "near_files",
    "units",
    "registry",
    "jsonio",
    "document_lines",
    "syntax",
    "documents",
    "validation",
    "disk_errors",
    "frames",
    "compiled_cache",
    "first_calls",
    "interpreted",
    "signatures",
    "right_of_way",
}
_LAYERS = [
    _BASE,
    {"specs"},
    {"strategy"},
    {"plan"},
    {"runtime", "datasets", "pictures", "inputs"},
    {"simulators"},
    {"testbed"},
    {"launchers"},
    {"trials"},
    {"script"},
    {"search", "loops", "graphs", "doctor"},
    {"report", "scaling", "script_tuning"},
    {"cli"},
]


def _allowed() -> dict[str, set[str]]:
    """What each room may import, itself included."""
    allowed: dict[str, set[str]] = {room: set(_BASE) for room in _BASE}
    below: set[str] = set(_BASE)
    for layer in _LAYERS[1:]:
        for room in layer:
            allowed[room] = below | {room}
        below = below | layer
    # Shipped files: they stand on the base, and everybody above the specs may look them up.
    allowed["configs"] = {*_BASE, "configs"}
    for room in allowed.keys() - {*_BASE, "specs"}:
        allowed[room].add("configs")
    # Fakes and conformance suites know all interfaces; the product never imports them.
    allowed["testing"] = (below | {"configs", "testing"}) - {"cli"}
    # `python -m autosync` is the command line by another door.
    allowed["__main__"] = {"cli"}
    # `python -m autosync.run` is the script door.
    allowed["run"] = {*_BASE, "script"}
    return allowed


_ALLOWED = _allowed()


def _room(module: str) -> str:
    """`autosync.plan.lowering` lives in the room plan; the package itself in the room with no name."""
    return module.removeprefix("autosync").removeprefix(".").split(".")[0]


def _imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each module of ours that a file imports, at its top or inside, with the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            # `from autosync import units` names a module, `from autosync.units import parse_size` does not.
            whole = node.module != "autosync"
            names = [node.module] if whole else [f"autosync.{alias.name}" for alias in node.names]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "autosync")


def _violations(module: str, source: str) -> list[str]:
    room = _room(module)
    if room not in _ALLOWED:
        return [f"{module}: the room {room} has no place in the order of imports yet"]
    return [
        f"{module}:{line}: {room} may not import {name}"
        for line, name in _imported(ast.parse(source))
        if _room(name) not in _ALLOWED[room] and name != "autosync.__version__"
    ]


def test_imports_go_one_way(modules: dict[str, Path]) -> None:
    # The package itself is a shop window: its lazy names come from everywhere (see test_light.py).
    found = [
        violation
        for module, path in modules.items()
        if module != "autosync"
        for violation in _violations(module, path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("autosync.units", "import autosync.specs"),
        ("autosync.specs.task", "from autosync.strategy.space import Space"),
        ("autosync.specs.cluster", "import autosync.configs"),
        ("autosync.configs", "from autosync.specs import task"),
        ("autosync.plan.lowering", "def late():\n    from autosync.runtime import engine"),
        ("autosync.runtime.engine.engine", "from autosync.datasets import store"),
        ("autosync.pictures.trace_file", "from autosync.runtime.engine.trace import Trace"),
        ("autosync.trials.service", "from autosync import Task"),
        ("autosync.search.tune", "from autosync.testing import launchers"),
        ("autosync.testing.launchers", "from autosync.cli import main"),
        ("autosync.attic.old", "import json"),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str) -> None:
    assert len(_violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("autosync.jsonio", "from autosync.errors import AutosyncError"),
        ("autosync.specs.task", "from autosync import units"),
        ("autosync.strategy.presets.ddp", "from autosync.strategy import space\nimport autosync.configs"),
        ("autosync.cli.main", "from autosync import __version__\nfrom autosync.search.tune import tune"),
        ("autosync.testing.launchers", "from autosync.trials import service"),
        ("autosync.plan.lowering", "import numpy\nfrom collections import abc"),
    ],
)
def test_a_right_import_is_let_through(module: str, source: str) -> None:
    assert _violations(module, source) == []
