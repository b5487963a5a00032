"""The declared dependencies are the imported ones: nothing is declared for nothing, nothing is there by luck."""

import ast
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

_DISTRIBUTIONS = {
    "dynet": {"dynet38"},
    "dynet_config": {"dynet38"},
    "sklearn": {"scikit-learn"},
    "websocket": {"websocket-client"},
    "xdist": {"pytest-xdist"},
    "yaml": {"pyyaml"},
}
"""The distributions that hold a module, where their names differ."""

_NOT_IMPORTED = {
    "boto3": "a test asks for it by name, and is skipped without it",
    "build": "the test of the wheel runs it",
    "duckdb": "a test asks for it by name, and is skipped without it",
    "flask": "moto's server needs it",
    "flask-cors": "the same",
    "mkdocs-material": "the theme that mkdocs.yml names",
    "mkdocstrings": "a plugin that mkdocs.yml names",
    "moto": "a test starts it as a command, and is skipped without it",
    "mypy": "a command",
    "optuna-dashboard": "a test asks for it by name, and is skipped without it",
    "pandas-stubs": "types for mypy",
    "psycopg": "SQLAlchemy imports the driver that a storage's URL names",
    "pytest-timeout": "a plugin of pytest",
    "ruff": "a command",
    "s3fs": "fsspec imports the plugin that a URL names",
    "setuptools": "builds the wheel",
    "types-pyyaml": "types for mypy",
    "xgboost-cpu": "xgboost for Linux: the same module",
}
"""Declared, and imported by no file of ours: why it is declared."""

_OTHER_FOLDERS = ("benchmarks", "examples", "tests", "tools")


def _imported(paths: Iterable[Path]) -> set[str]:
    """The top-level modules that files import, without the standard library."""
    names: set[str] = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names - {"autosync"}


def _distributions(modules: Iterable[str]) -> set[str]:
    return set().union(*(_DISTRIBUTIONS.get(module, {module}) for module in modules))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def declared(pyproject: dict[str, Any]) -> dict[str, set[str]]:
    """The names of the required distributions, and of those of each extra."""
    project = pyproject["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {group: {_normal(Requirement(text).name) for text in texts} for group, texts in groups.items()}


@pytest.fixture(scope="module")
def product(modules: dict[str, Path]) -> set[str]:
    """The distributions that the product imports."""
    return _distributions(_imported(modules.values()))


@pytest.fixture(scope="module")
def others(root: Path) -> set[str]:
    """The distributions that tests, tools, benchmarks and examples import."""
    files = [path for folder in _OTHER_FOLDERS for path in (root / folder).rglob("*.py")]
    own = {path.stem for path in files} | {path.parent.name for path in files} | set(_OTHER_FOLDERS)
    return _distributions(_imported(files) - own)


def test_what_the_product_imports_is_declared(declared: dict[str, set[str]], product: set[str]) -> None:
    users = set().union(*(names for group, names in declared.items() if group != "dev"))
    assert product <= users, "an import of the product that no user would have installed"


def test_what_tests_and_tools_import_is_declared(declared: dict[str, set[str]], others: set[str]) -> None:
    assert others <= set().union(*declared.values())


def test_every_required_dependency_is_imported_by_the_product(declared: dict[str, set[str]], product: set[str]) -> None:
    assert declared[""] - product == {"xgboost-cpu"}, "a dependency that only costs users time"


def test_every_extra_is_imported(declared: dict[str, set[str]], product: set[str], others: set[str]) -> None:
    extras = set().union(*(names for group, names in declared.items() if group))
    assert extras - product - others - _NOT_IMPORTED.keys() == set()


def test_each_exception_is_still_one(declared: dict[str, set[str]], product: set[str], others: set[str]) -> None:
    assert set().union(*declared.values()) >= _NOT_IMPORTED.keys()
    # setuptools is imported by no file of ours, and so on: who imports one needs no reason here.
    assert not _NOT_IMPORTED.keys() & (product | others)
