"""Where the checkout is, what pyproject.toml says of it, and a Python that sees only what is installed."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RunPython = Callable[[str], str]


@pytest.fixture(scope="session")
def root() -> Path:
    return Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def pyproject(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def package_dirs(root: Path, pyproject: dict[str, Any]) -> dict[str, Path]:
    """The five source folders, by the name of the package each is imported as."""
    return {name: root / folder for name, folder in pyproject["tool"]["setuptools"]["package-dir"].items()}


@pytest.fixture(scope="session")
def modules(package_dirs: dict[str, Path]) -> dict[str, Path]:
    """Every module of the package, by the name it is imported as."""
    found = {}
    for package, folder in package_dirs.items():
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            if parts[-1] == "__init__":
                parts = parts[:-1]
            found[".".join([package, *parts])] = path
    return dict(sorted(found.items()))


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """Runs code in a fresh interpreter away from the checkout and returns what it printed."""

    def run(code: str) -> str:
        result = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"PYTHONSAFEPATH": "1"},
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run
