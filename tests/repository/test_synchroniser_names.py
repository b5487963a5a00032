"""A kind of synchroniser lives in its own file and its template: hardly any other file names its class."""

import ast
from pathlib import Path

from autosync.strategy.synchronisers import SHIPPED_KINDS, synchroniser_kinds

_AT_HOME = (
    "autosync.strategy.synchronisers",
    "autosync.plan.templates",
    "autosync.strategy.presets",
    "autosync.runtime.local",
    "autosync.testing",
)
_CLASSES = {synchroniser_kinds()[kind].__name__ for kind in SHIPPED_KINDS}

# Stock DDP has all-reduce and, for sparse gradients, gathering of rows: these say which strategies it can express.
NAMED_BY = ["autosync.search.target", "autosync.strategy.emit.ddp"]


def _names_a_class(source: str) -> bool:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and node.id in _CLASSES:
            return True
        if isinstance(node, ast.Attribute) and node.attr in _CLASSES:
            return True
        if isinstance(node, ast.ImportFrom) and any(alias.name in _CLASSES for alias in node.names):
            return True
    return False


def test_two_files_name_the_class_of_a_synchroniser(modules: dict[str, Path]) -> None:
    elsewhere = {
        module: path
        for module, path in modules.items()
        if not any(module == home or module.startswith(f"{home}.") for home in _AT_HOME)
    }
    naming = [module for module, path in elsewhere.items() if _names_a_class(path.read_text(encoding="utf-8"))]
    assert sorted(naming) == NAMED_BY


def test_a_name_is_noticed() -> None:
    assert _names_a_class("from autosync.strategy.synchronisers.all_reduce import AllReduce as A")
    assert _names_a_class("isinstance(one, all_reduce.AllReduce)")
    assert not _names_a_class('"""Periodic averaging."""\nkind = "all_reduce"')
