"""Loads a model of vertex functions from the user's Python file."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from autosync.errors import InputError, Problem, did_you_mean
from autosync.graphs.graph_task import GraphTask
from autosync.specs.task_file import import_path, load_module, user_code

DEFAULT_NAME = "graph_task"

_TARGET = re.compile(r"(?P<file>.*\.py)(?::(?P<name>.*))?", re.DOTALL)


def load_graph_task(target: str) -> GraphTask:
    """Return what the function of a target `FILE.py[:NAME]` returns; without a name, that of `graph_task()`."""
    match = _TARGET.fullmatch(target)
    if match is None:
        raise InputError(f"{target!r} names no graph task", rule="FILE.py or FILE.py:NAME")
    file, name = match["file"], match["name"] or DEFAULT_NAME
    if not Path(file).is_file():
        what = "is no file" if Path(file).exists() else "no such file"
        raise _error(file, what, rule="a graph task is a function in a Python file")
    with import_path(Path(file).resolve().parent):
        module = load_module(file, kind="graph task")
        value = getattr(module, name, None)
        if isinstance(value, GraphTask):
            return value
        if not callable(value):
            own = [key for key, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__]
            known = f"known: {', '.join(sorted(own))}" if own else "a function that returns a GraphTask"
            raise _error(file, f"has no function {name!r}", rule=known, hint=did_you_mean(name, own))
        line = getattr(getattr(value, "__code__", None), "co_firstlineno", 1)
        with user_code(file, f"{name}()", line=line, kind="graph task"):
            task = value()
    if not isinstance(task, GraphTask):
        what = f"{name}() returned a value of type {type(task).__name__}"
        raise _error(file, what, rule="must return a GraphTask", line=line)
    return task


@contextlib.contextmanager
def running(target: str) -> Iterator[None]:
    """Run a block in which the user's model and loss are called. Their exceptions have the user's line."""
    match = _TARGET.fullmatch(target)
    assert match is not None, "the target was loaded"
    with user_code(match["file"], "the model", kind="graph task"):
        yield


def _error(file: str, what: str, *, rule: str, hint: str = "", line: int = 1) -> InputError:
    return InputError([Problem(what=what, rule=rule, hint=hint, file=file, line=line)])
