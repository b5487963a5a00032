"""Parses the source of a loop's function, with the line numbers of the user's file."""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

from autosync.errors import InputError, Problem

# Python 3.11 counts the depth of syntax trees for all threads together, and raises SystemError if two build one.
_parser = threading.Lock()


def function_tree(function: FunctionType) -> ast.FunctionDef:
    """Return the definition of a function in its file. Raise InputError if the file has changed."""
    code = function.__code__
    try:
        text = Path(code.co_filename).read_text(encoding="utf-8")
        with _parser:
            tree = ast.parse(text)
            whole = compile(text, code.co_filename, "exec", dont_inherit=True)
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError) as error:
        raise _no_source(code, "the source cannot be read") from error
    if code not in _codes(whole):
        raise _no_source(code, "the file has changed since it was loaded")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name and _first_line(node) == code.co_firstlineno:
            if len(node.decorator_list) > 1:
                raise _no_source(code, "another decorator stands beside @autosync.loop")
            return node
    raise _no_source(code, "the source cannot be read")


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(one.lineno for one in node.decorator_list)])


def _no_source(code: CodeType, what: str) -> InputError:
    rule = "a loop is a function in a Python file, under @autosync.loop alone"
    return InputError([Problem(what=what, rule=rule, file=code.co_filename, line=code.co_firstlineno)])
