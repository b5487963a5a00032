"""A file above 400 lines, or a function above 60, holds more than one idea."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
AS_PEOPLE_WRITE_THEM = "tests/script_suite/scripts/"
"""The scripts of this folder have the form in which people have theirs: many of them are one long `main`."""


@pytest.fixture(scope="module")
def sources(root: Path, package_dirs: dict[str, Path]) -> dict[str, str]:
    """The text of every Python file, by its path in the repository."""
    others = [root / name for name in ("benchmarks", "examples", "tests", "tools")]
    return {
        str(path.relative_to(root)): path.read_text(encoding="utf-8")
        for folder in dict.fromkeys([*package_dirs.values(), *others])
        for path in folder.rglob("*.py")
    }


def test_no_file_is_too_long(sources: dict[str, str]) -> None:
    lengths = {path: len(text.splitlines()) for path, text in sources.items()}
    assert lengths, "the folders are where this test looks for them"
    assert not {path: lines for path, lines in lengths.items() if lines > MAX_FILE_LINES}


def test_no_function_is_too_long(sources: dict[str, str]) -> None:
    ours = {path: text for path, text in sources.items() if not path.startswith(AS_PEOPLE_WRITE_THEM)}
    assert not [name for path, text in ours.items() for name in _long_functions(path, ast.parse(text))]


def _long_functions(path: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            if node.end_lineno - node.lineno >= MAX_FUNCTION_LINES:
                yield f"{path}:{node.name}"


def test_a_long_function_is_noticed() -> None:
    body = "\n".join(["    pass"] * MAX_FUNCTION_LINES)
    assert list(_long_functions("a.py", ast.parse(f"def long():\n{body}\n\ndef short():\n    pass\n"))) == ["a.py:long"]
