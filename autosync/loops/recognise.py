"""Recognises Python files that declare loops, from their text. No code of the file runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from autosync import disk_errors
from autosync.loops.load import file_of
from autosync.specs.task_file import DEFAULT_NAME, is_task

_MODULE = "autosync"
_MAX_BYTES = 2**24


def is_loop(target: str) -> bool:
    """Return whether a target `FILE.py[:NAME]` names a loop: NAME is one, or the file has loops and no task().

    A loop is recognised if it stands at the top of the file, as a function under `@autosync.loop(...)` or as a name for
    `autosync.loop(...)(function)`.
    """
    if not is_task(target):
        return False
    try:
        with disk_errors.open_input(Path(file_of(target))) as stream:
            tree = ast.parse(stream.read(_MAX_BYTES))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        # The loader of tasks reports a file that cannot be read.
        return False
    names = set(_loops(tree))
    if name := target[len(file_of(target)) + 1 :]:
        return name in names
    has_task = any(isinstance(node, ast.FunctionDef) and node.name == DEFAULT_NAME for node in tree.body)
    return bool(names) and not has_task


def _loops(tree: ast.Module) -> Iterator[str]:
    """Yield the names of the loops at the top of a file."""
    modules, functions = _names_of_loop(tree)
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name, decorator_list=[*decorators]):
                if any(_declares(one, modules, functions) for one in decorators):
                    yield name
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=declaration)):
                if _declares(declaration, modules, functions):
                    yield name


def _declares(node: ast.expr, modules: set[str], functions: set[str]) -> bool:
    """Return whether an expression is a call of `autosync.loop`."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr="loop")):
            return module in modules
        case ast.Call(func=ast.Name(id=name)):
            return name in functions
    return False


def _names_of_loop(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Return the names of the module autosync in a file, and the names of its function `loop`."""
    modules: set[str] = set()
    functions: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {one.asname or one.name for one in node.names if one.name == _MODULE}
        elif isinstance(node, ast.ImportFrom) and node.module == _MODULE and not node.level:
            functions |= {one.asname or one.name for one in node.names if one.name == "loop"}
    return modules, functions
